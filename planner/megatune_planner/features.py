"""What a deployment may have switched on that a plan was not measured with, by one name for all runtimes.

A plan accepts none of it unless it says so. ``runtimes.py`` says what each is called in SGLang and in vLLM.
"""

from __future__ import annotations

FEATURES = {
    "pipeline_parallel": "layers of the model are spread over several groups of ranks",
    "multi_node": "the ranks of a tensor-parallel group are on several nodes",
    "data_parallel_attention": "attention runs data-parallel and the rest tensor-parallel",
    "expert_parallel": "experts are spread whole over the ranks",
    "expert_balancing": "experts move between ranks while serving",
    "context_parallel": "the key-value cache of a request is spread over the ranks",
    "speculative_decoding": "several tokens of a request are verified in one step",
    "ragged_verification": "requests of one step verify unequal numbers of tokens",
    "batch_overlap": "a step is cut into micro-batches that overlap",
    "lora": "adapters are applied to the weights",
    "disaggregation": "prefill and decode run on different servers",
    "routed_experts_output": "the experts that each token went to are returned",
    "indexer_output": "what a sparse attention's indexer chose is returned",
    "cache_offload": "the key-value cache moves to the host's memory",
    "hierarchical_sparse": "sparse attention over a cache of several levels",
    "memory_release": "weights or cache leave the GPU while the server sleeps",
    "weight_offload": "weights are kept in the host's memory",
    "compiled_decode": "torch compiles the decode step",
    "deterministic": "results have to be the same bits at every batch size",
    "partitioned_gpu": "the GPU is a partition of one",
    "state_replay": "the recurrent state is recomputed instead of kept",
}
"""What each means, in one line."""
