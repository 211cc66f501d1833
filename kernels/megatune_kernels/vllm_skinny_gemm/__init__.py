"""vLLM's own skinny GEMM kernel, tuned where it lies: an adapter, without a line of vLLM's."""

from megatune_kernels.vllm_skinny_gemm.operator import VllmSkinnyGemm

__all__ = ["VllmSkinnyGemm"]
