CREATE FUNCTION public.megatune_refuse() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = 'integrity_constraint_violation', MESSAGE = TG_ARGV[0];
END $$;
CREATE TABLE public.megatune_alembic_version (
    version_num character varying(32) NOT NULL
);
CREATE TABLE public.megatune_artifacts (
    id integer NOT NULL,
    key character varying(128) NOT NULL,
    arch character varying(32) NOT NULL,
    entry text NOT NULL,
    registers integer NOT NULL,
    local_bytes integer NOT NULL,
    cubin_bytes integer NOT NULL,
    dsl character varying(64) NOT NULL,
    created_at timestamp without time zone NOT NULL
);
CREATE SEQUENCE public.megatune_artifacts_id_seq
    AS integer
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.megatune_artifacts_id_seq OWNED BY public.megatune_artifacts.id;
CREATE TABLE public.megatune_campaign_log (
    id integer NOT NULL,
    campaign_id integer NOT NULL,
    at timestamp without time zone NOT NULL,
    who character varying(256) NOT NULL,
    action character varying(32) NOT NULL,
    comment text NOT NULL
);
CREATE SEQUENCE public.megatune_campaign_log_id_seq
    AS integer
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.megatune_campaign_log_id_seq OWNED BY public.megatune_campaign_log.id;
CREATE TABLE public.megatune_campaigns (
    id integer NOT NULL,
    name character varying(256) NOT NULL,
    file_text text NOT NULL,
    file_digest character varying(64) NOT NULL,
    target_id integer,
    state character varying(32) NOT NULL,
    budget json NOT NULL,
    created_at timestamp without time zone NOT NULL,
    started_at timestamp without time zone,
    finished_at timestamp without time zone,
    measuring_s double precision NOT NULL,
    wall_s double precision NOT NULL,
    objective json
);
CREATE SEQUENCE public.megatune_campaigns_id_seq
    AS integer
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.megatune_campaigns_id_seq OWNED BY public.megatune_campaigns.id;
CREATE TABLE public.megatune_configs (
    id integer NOT NULL,
    operator character varying(64) NOT NULL,
    digest character varying(64) NOT NULL,
    variant character varying(64) NOT NULL,
    params json NOT NULL,
    changes_bits boolean,
    created_at timestamp without time zone NOT NULL
);
CREATE SEQUENCE public.megatune_configs_id_seq
    AS integer
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.megatune_configs_id_seq OWNED BY public.megatune_configs.id;
CREATE TABLE public.megatune_coordinators (
    campaign_id integer NOT NULL,
    holder character varying(512) NOT NULL,
    epoch integer NOT NULL,
    expires_at double precision NOT NULL,
    basis character varying(64) NOT NULL,
    measurements_before integer NOT NULL,
    trials_before integer NOT NULL
);
CREATE TABLE public.megatune_exports (
    id integer NOT NULL,
    plan_id integer NOT NULL,
    at timestamp without time zone NOT NULL,
    who character varying(256) NOT NULL,
    exporter character varying(128) NOT NULL,
    runtime character varying(128) NOT NULL,
    runtime_version character varying(64) NOT NULL,
    files json NOT NULL,
    digest character varying(64) NOT NULL,
    state character varying(32) NOT NULL
);
CREATE SEQUENCE public.megatune_exports_id_seq
    AS integer
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.megatune_exports_id_seq OWNED BY public.megatune_exports.id;
CREATE TABLE public.megatune_jobs (
    id integer NOT NULL,
    campaign_id integer NOT NULL,
    workload_id integer NOT NULL,
    stage character varying(32) NOT NULL,
    number integer NOT NULL,
    state character varying(32) NOT NULL,
    content json NOT NULL,
    attempt integer NOT NULL,
    failures integer NOT NULL,
    strikes integer NOT NULL,
    evidence json NOT NULL,
    worker_id integer,
    expires_at double precision,
    measurement_id integer,
    ignored integer NOT NULL
);
CREATE SEQUENCE public.megatune_jobs_id_seq
    AS integer
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.megatune_jobs_id_seq OWNED BY public.megatune_jobs.id;
CREATE TABLE public.megatune_measurements (
    id integer NOT NULL,
    workload_id integer NOT NULL,
    config_id integer NOT NULL,
    target_id integer NOT NULL,
    regime character varying(32) NOT NULL,
    stage character varying(32) NOT NULL,
    status character varying(32) NOT NULL,
    provenance character varying(32) NOT NULL,
    session character varying(128) NOT NULL,
    measured_at timestamp without time zone NOT NULL,
    median_us double precision,
    low_us double precision,
    high_us double precision,
    launches_a_sample integer NOT NULL,
    sm_clock_mhz integer,
    flush_bytes bigint NOT NULL,
    reason text NOT NULL,
    compile_s double precision NOT NULL,
    measure_s double precision NOT NULL,
    artifact character varying(128) NOT NULL,
    throttled bytea,
    samples bytea,
    revision character varying(64) DEFAULT ''::character varying NOT NULL,
    parts json
);
CREATE SEQUENCE public.megatune_measurements_id_seq
    AS integer
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.megatune_measurements_id_seq OWNED BY public.megatune_measurements.id;
CREATE TABLE public.megatune_plans (
    id integer NOT NULL,
    digest character varying(64) NOT NULL,
    name character varying(256) NOT NULL,
    content text NOT NULL,
    state character varying(32) NOT NULL,
    target_id integer NOT NULL,
    created_at timestamp without time zone NOT NULL,
    model character varying(256) DEFAULT ''::character varying NOT NULL,
    worlds character varying(64) DEFAULT ''::character varying NOT NULL
);
CREATE SEQUENCE public.megatune_plans_id_seq
    AS integer
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.megatune_plans_id_seq OWNED BY public.megatune_plans.id;
CREATE TABLE public.megatune_priors (
    id integer NOT NULL,
    digest character varying(64) NOT NULL,
    format character varying(64) NOT NULL,
    source character varying(512) NOT NULL,
    place json NOT NULL,
    tokens integer,
    entry json NOT NULL,
    reason text NOT NULL,
    created_at timestamp without time zone NOT NULL
);
CREATE SEQUENCE public.megatune_priors_id_seq
    AS integer
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.megatune_priors_id_seq OWNED BY public.megatune_priors.id;
CREATE TABLE public.megatune_repeats (
    id integer NOT NULL,
    campaign_id integer NOT NULL,
    target_id integer NOT NULL,
    regime character varying(32) NOT NULL,
    provenance character varying(32) NOT NULL,
    at timestamp without time zone NOT NULL,
    who character varying(256) NOT NULL,
    repeats integer NOT NULL,
    flip_rate double precision NOT NULL,
    regret double precision NOT NULL,
    document text NOT NULL
);
CREATE SEQUENCE public.megatune_repeats_id_seq
    AS integer
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.megatune_repeats_id_seq OWNED BY public.megatune_repeats.id;
CREATE TABLE public.megatune_reviews (
    id integer NOT NULL,
    plan_id integer NOT NULL,
    at timestamp without time zone NOT NULL,
    who character varying(256) NOT NULL,
    action character varying(32) NOT NULL,
    comment text NOT NULL,
    before character varying(32) NOT NULL,
    after character varying(32) NOT NULL,
    other_id integer
);
CREATE SEQUENCE public.megatune_reviews_id_seq
    AS integer
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.megatune_reviews_id_seq OWNED BY public.megatune_reviews.id;
CREATE TABLE public.megatune_targets (
    id integer NOT NULL,
    digest character varying(64) NOT NULL,
    hardware json NOT NULL,
    toolchain json NOT NULL,
    created_at timestamp without time zone NOT NULL
);
CREATE SEQUENCE public.megatune_targets_id_seq
    AS integer
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.megatune_targets_id_seq OWNED BY public.megatune_targets.id;
CREATE TABLE public.megatune_trials (
    id integer NOT NULL,
    campaign_id integer NOT NULL,
    workload_id integer NOT NULL,
    config_id integer NOT NULL,
    number integer NOT NULL,
    state character varying(32) NOT NULL,
    measurement_id integer,
    reason character varying(256) NOT NULL,
    reused boolean NOT NULL,
    created_at timestamp without time zone NOT NULL
);
CREATE SEQUENCE public.megatune_trials_id_seq
    AS integer
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.megatune_trials_id_seq OWNED BY public.megatune_trials.id;
CREATE TABLE public.megatune_verifications (
    id integer NOT NULL,
    plan_id integer NOT NULL,
    target_id integer NOT NULL,
    at timestamp without time zone NOT NULL,
    who character varying(256) NOT NULL,
    provenance character varying(32) NOT NULL,
    verdict character varying(32) NOT NULL,
    reason text NOT NULL,
    document text NOT NULL
);
CREATE SEQUENCE public.megatune_verifications_id_seq
    AS integer
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.megatune_verifications_id_seq OWNED BY public.megatune_verifications.id;
CREATE TABLE public.megatune_workers (
    id integer NOT NULL,
    campaign_id integer NOT NULL,
    place character varying(512) NOT NULL,
    target_id integer NOT NULL,
    provenance character varying(32) NOT NULL,
    needs_artifacts boolean NOT NULL,
    started_at double precision NOT NULL,
    seen_at double precision NOT NULL,
    ended text NOT NULL
);
CREATE SEQUENCE public.megatune_workers_id_seq
    AS integer
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.megatune_workers_id_seq OWNED BY public.megatune_workers.id;
CREATE TABLE public.megatune_workloads (
    id integer NOT NULL,
    digest character varying(64) NOT NULL,
    operator character varying(64) NOT NULL,
    shape character varying(256) NOT NULL,
    dims json NOT NULL,
    tokens integer NOT NULL,
    dtype character varying(32) NOT NULL,
    world integer NOT NULL,
    routing character varying(64) NOT NULL,
    created_at timestamp without time zone NOT NULL,
    facts json
);
CREATE SEQUENCE public.megatune_workloads_id_seq
    AS integer
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.megatune_workloads_id_seq OWNED BY public.megatune_workloads.id;
ALTER TABLE ONLY public.megatune_artifacts ALTER COLUMN id SET DEFAULT nextval('public.megatune_artifacts_id_seq'::regclass);
ALTER TABLE ONLY public.megatune_campaign_log ALTER COLUMN id SET DEFAULT nextval('public.megatune_campaign_log_id_seq'::regclass);
ALTER TABLE ONLY public.megatune_campaigns ALTER COLUMN id SET DEFAULT nextval('public.megatune_campaigns_id_seq'::regclass);
ALTER TABLE ONLY public.megatune_configs ALTER COLUMN id SET DEFAULT nextval('public.megatune_configs_id_seq'::regclass);
ALTER TABLE ONLY public.megatune_exports ALTER COLUMN id SET DEFAULT nextval('public.megatune_exports_id_seq'::regclass);
ALTER TABLE ONLY public.megatune_jobs ALTER COLUMN id SET DEFAULT nextval('public.megatune_jobs_id_seq'::regclass);
ALTER TABLE ONLY public.megatune_measurements ALTER COLUMN id SET DEFAULT nextval('public.megatune_measurements_id_seq'::regclass);
ALTER TABLE ONLY public.megatune_plans ALTER COLUMN id SET DEFAULT nextval('public.megatune_plans_id_seq'::regclass);
ALTER TABLE ONLY public.megatune_priors ALTER COLUMN id SET DEFAULT nextval('public.megatune_priors_id_seq'::regclass);
ALTER TABLE ONLY public.megatune_repeats ALTER COLUMN id SET DEFAULT nextval('public.megatune_repeats_id_seq'::regclass);
ALTER TABLE ONLY public.megatune_reviews ALTER COLUMN id SET DEFAULT nextval('public.megatune_reviews_id_seq'::regclass);
ALTER TABLE ONLY public.megatune_targets ALTER COLUMN id SET DEFAULT nextval('public.megatune_targets_id_seq'::regclass);
ALTER TABLE ONLY public.megatune_trials ALTER COLUMN id SET DEFAULT nextval('public.megatune_trials_id_seq'::regclass);
ALTER TABLE ONLY public.megatune_verifications ALTER COLUMN id SET DEFAULT nextval('public.megatune_verifications_id_seq'::regclass);
ALTER TABLE ONLY public.megatune_workers ALTER COLUMN id SET DEFAULT nextval('public.megatune_workers_id_seq'::regclass);
ALTER TABLE ONLY public.megatune_workloads ALTER COLUMN id SET DEFAULT nextval('public.megatune_workloads_id_seq'::regclass);
INSERT INTO public.megatune_alembic_version VALUES ('0011');
INSERT INTO public.megatune_artifacts VALUES (1, 'artifact', 'sm_90a', 'entry', 96, 0, 20480, '4.8.1', '2026-11-30 22:34:10.518772');
INSERT INTO public.megatune_campaign_log VALUES (1, 1, '2026-11-30 22:34:10.552702', 'somebody', 'stop', 'it is enough');
INSERT INTO public.megatune_campaigns VALUES (1, 'first', 'name: first', 'file', 1, 'finished', '{"trials":4}', '2026-11-30 22:34:10.52009', '2026-08-01 11:00:00', '2026-08-01 13:00:00', 5400, 7200, '{"kind":"mean"}');
INSERT INTO public.megatune_configs VALUES (1, 'projection', 'config-0', 'simt', '{"rows":0}', NULL, '2026-11-30 22:34:10.515991');
INSERT INTO public.megatune_configs VALUES (2, 'projection', 'config-1', 'mma', '{"rows":1}', NULL, '2026-11-30 22:34:10.516518');
INSERT INTO public.megatune_configs VALUES (3, 'projection', 'config-2', 'cublas', '{}', NULL, '2026-11-30 22:34:10.516959');
INSERT INTO public.megatune_configs VALUES (4, 'projection', 'config-3', 'simt', '{"rows":8}', true, '2026-11-30 22:34:10.517283');
INSERT INTO public.megatune_coordinators VALUES (1, 'node1:1:boot:1', 1, 1796078070.5329802, 'basis', 4, 4);
INSERT INTO public.megatune_exports VALUES (1, 1, '2026-11-30 22:34:10.548672', 'somebody', 'json', '', '', '{"a":"ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb"}', '65e80a73839e9b5bd458e65426ff8a11c235d49dcd49a3aeada9cfb6fda30309', 'draft');
INSERT INTO public.megatune_jobs VALUES (1, 1, 2, 'search', 9, 'done', '{"regime":"cold-graph","reason":"sampler","configs":[{"id":1,"digest":"config-0","variant":"simt","params":{},"artifacts":[],"compile_s":0.0,"revision":null,"runs":null}]}', 1, 0, 0, '[]', 1, NULL, 1, 0);
INSERT INTO public.megatune_measurements VALUES (1, 2, 1, 1, 'cold-graph', 'search', 'ok', 'measured', 'first', '2026-08-01 12:00:00', 10, 9.9, 10.1, 0, NULL, 0, '', 0, 0, 'artifact', '\x0001', '\x0000184100002841', 'r1', NULL);
INSERT INTO public.megatune_measurements VALUES (2, 2, 2, 1, 'cold-graph', 'search', 'hang', 'measured', 'first', '2026-08-01 12:00:00', NULL, NULL, NULL, 0, NULL, 0, 'it was hang', 0, 0, '', NULL, NULL, '', NULL);
INSERT INTO public.megatune_measurements VALUES (3, 2, 1, 1, 'cold-graph', 'final', 'ok', 'measured', 'first', '2026-08-01 12:00:00', 10, 9.9, 10.1, 0, NULL, 0, '', 0, 0, '', NULL, '\x0000204100002041', '', NULL);
INSERT INTO public.megatune_measurements VALUES (4, 2, 3, 1, 'cold-graph', 'final', 'ok', 'measured', 'first', '2026-08-01 12:00:00', 11, 10.89, 11.11, 0, NULL, 0, '', 0, 0, '', NULL, '\x0000304100003041', '', '{"idle":5.25}');
INSERT INTO public.megatune_plans VALUES (1, 'plan', 'first', '{"bands":[]}', 'approved', 1, '2026-11-30 22:34:10.545726', 'first', '');
INSERT INTO public.megatune_priors VALUES (1, 'prior', 'vllm-moe-table', 'E=8,N=64,device_name=NVIDIA_H200.json', '{"E":8,"N":64}', 16, '{"BLOCK_SIZE_M":16}', 'no operator here reads it', '2026-11-30 22:34:10.551926');
INSERT INTO public.megatune_repeats VALUES (1, 1, 1, 'cold-graph', 'measured', '2026-08-02 13:00:00', 'somebody', 2, 0.25, 0.5, '{}');
INSERT INTO public.megatune_reviews VALUES (1, 1, '2026-11-30 22:34:10.547732', 'somebody', 'export', 'unreviewed', 'draft', 'draft', NULL);
INSERT INTO public.megatune_reviews VALUES (2, 1, '2026-11-30 22:34:10.549782', 'somebody', 'approve', 'as measured', 'draft', 'approved', NULL);
INSERT INTO public.megatune_targets VALUES (1, '7a7a7a7a7a7a7a7a', '{"gpu":"H200"}', '{"driver":"580.1"}', '2026-11-30 22:34:10.512364');
INSERT INTO public.megatune_trials VALUES (1, 1, 2, 1, 0, 'done', 1, 'sampler', false, '2026-11-30 22:34:10.525164');
INSERT INTO public.megatune_trials VALUES (2, 1, 2, 2, 1, 'done', 2, 'sampler', false, '2026-11-30 22:34:10.52695');
INSERT INTO public.megatune_trials VALUES (3, 1, 2, 1, 2, 'done', 3, 'finalist', false, '2026-11-30 22:34:10.52862');
INSERT INTO public.megatune_trials VALUES (4, 1, 2, 3, 3, 'done', 4, 'finalist', false, '2026-11-30 22:34:10.530242');
INSERT INTO public.megatune_trials VALUES (5, 1, 2, 1, 9, 'done', 1, 'sampler', false, '2026-11-30 22:34:10.537755');
INSERT INTO public.megatune_verifications VALUES (1, 1, 1, '2026-08-02 12:00:00', 'somebody', 'measured', 'holds', 'as measured', '{}');
INSERT INTO public.megatune_workers VALUES (1, 1, 'vm:3064:16e29640-bf74-4a3e-b5ea-ea7c221135f4/4026531836:3710460', 1, 'measured', true, 1796078050.5359979, 1796078050.5359979, '');
INSERT INTO public.megatune_workloads VALUES (1, 'projection-0', 'projection', 'k=7168,n=6288', '{"k":7168,"n":6288}', 0, 'bf16', 1, 'none', '2026-11-30 22:34:10.514181', NULL);
INSERT INTO public.megatune_workloads VALUES (2, 'projection-1', 'projection', 'k=7168,n=6288', '{"k":7168,"n":6288}', 1, 'bf16', 1, 'none', '2026-11-30 22:34:10.514796', NULL);
SELECT pg_catalog.setval('public.megatune_artifacts_id_seq', 1, true);
SELECT pg_catalog.setval('public.megatune_campaign_log_id_seq', 1, true);
SELECT pg_catalog.setval('public.megatune_campaigns_id_seq', 1, true);
SELECT pg_catalog.setval('public.megatune_configs_id_seq', 4, true);
SELECT pg_catalog.setval('public.megatune_exports_id_seq', 1, true);
SELECT pg_catalog.setval('public.megatune_jobs_id_seq', 1, true);
SELECT pg_catalog.setval('public.megatune_measurements_id_seq', 4, true);
SELECT pg_catalog.setval('public.megatune_plans_id_seq', 1, true);
SELECT pg_catalog.setval('public.megatune_priors_id_seq', 1, true);
SELECT pg_catalog.setval('public.megatune_repeats_id_seq', 1, true);
SELECT pg_catalog.setval('public.megatune_reviews_id_seq', 2, true);
SELECT pg_catalog.setval('public.megatune_targets_id_seq', 1, true);
SELECT pg_catalog.setval('public.megatune_trials_id_seq', 5, true);
SELECT pg_catalog.setval('public.megatune_verifications_id_seq', 1, true);
SELECT pg_catalog.setval('public.megatune_workers_id_seq', 1, true);
SELECT pg_catalog.setval('public.megatune_workloads_id_seq', 2, true);
ALTER TABLE ONLY public.megatune_alembic_version
    ADD CONSTRAINT megatune_alembic_version_pkc PRIMARY KEY (version_num);
ALTER TABLE ONLY public.megatune_artifacts
    ADD CONSTRAINT pk_megatune_artifacts PRIMARY KEY (id);
ALTER TABLE ONLY public.megatune_campaign_log
    ADD CONSTRAINT pk_megatune_campaign_log PRIMARY KEY (id);
ALTER TABLE ONLY public.megatune_campaigns
    ADD CONSTRAINT pk_megatune_campaigns PRIMARY KEY (id);
ALTER TABLE ONLY public.megatune_configs
    ADD CONSTRAINT pk_megatune_configs PRIMARY KEY (id);
ALTER TABLE ONLY public.megatune_coordinators
    ADD CONSTRAINT pk_megatune_coordinators PRIMARY KEY (campaign_id);
ALTER TABLE ONLY public.megatune_exports
    ADD CONSTRAINT pk_megatune_exports PRIMARY KEY (id);
ALTER TABLE ONLY public.megatune_jobs
    ADD CONSTRAINT pk_megatune_jobs PRIMARY KEY (id);
ALTER TABLE ONLY public.megatune_measurements
    ADD CONSTRAINT pk_megatune_measurements PRIMARY KEY (id);
ALTER TABLE ONLY public.megatune_plans
    ADD CONSTRAINT pk_megatune_plans PRIMARY KEY (id);
ALTER TABLE ONLY public.megatune_priors
    ADD CONSTRAINT pk_megatune_priors PRIMARY KEY (id);
ALTER TABLE ONLY public.megatune_repeats
    ADD CONSTRAINT pk_megatune_repeats PRIMARY KEY (id);
ALTER TABLE ONLY public.megatune_reviews
    ADD CONSTRAINT pk_megatune_reviews PRIMARY KEY (id);
ALTER TABLE ONLY public.megatune_targets
    ADD CONSTRAINT pk_megatune_targets PRIMARY KEY (id);
ALTER TABLE ONLY public.megatune_trials
    ADD CONSTRAINT pk_megatune_trials PRIMARY KEY (id);
ALTER TABLE ONLY public.megatune_verifications
    ADD CONSTRAINT pk_megatune_verifications PRIMARY KEY (id);
ALTER TABLE ONLY public.megatune_workers
    ADD CONSTRAINT pk_megatune_workers PRIMARY KEY (id);
ALTER TABLE ONLY public.megatune_workloads
    ADD CONSTRAINT pk_megatune_workloads PRIMARY KEY (id);
ALTER TABLE ONLY public.megatune_artifacts
    ADD CONSTRAINT uq_megatune_artifacts_key UNIQUE (key);
ALTER TABLE ONLY public.megatune_campaigns
    ADD CONSTRAINT uq_megatune_campaigns_name UNIQUE (name);
ALTER TABLE ONLY public.megatune_configs
    ADD CONSTRAINT uq_megatune_configs_operator_digest UNIQUE (operator, digest);
ALTER TABLE ONLY public.megatune_jobs
    ADD CONSTRAINT uq_megatune_jobs_once UNIQUE (campaign_id, workload_id, stage, number);
ALTER TABLE ONLY public.megatune_plans
    ADD CONSTRAINT uq_megatune_plans_digest UNIQUE (digest);
ALTER TABLE ONLY public.megatune_priors
    ADD CONSTRAINT uq_megatune_priors_digest UNIQUE (digest);
ALTER TABLE ONLY public.megatune_targets
    ADD CONSTRAINT uq_megatune_targets_digest UNIQUE (digest);
ALTER TABLE ONLY public.megatune_trials
    ADD CONSTRAINT uq_megatune_trials_once UNIQUE (campaign_id, workload_id, number, config_id, reason);
ALTER TABLE ONLY public.megatune_workloads
    ADD CONSTRAINT uq_megatune_workloads_digest UNIQUE (digest);
CREATE INDEX ix_megatune_campaign_log_campaign_id ON public.megatune_campaign_log USING btree (campaign_id);
CREATE INDEX ix_megatune_campaigns_target_id ON public.megatune_campaigns USING btree (target_id);
CREATE INDEX ix_megatune_exports_plan_id ON public.megatune_exports USING btree (plan_id);
CREATE INDEX ix_megatune_jobs_campaign_id_state_id ON public.megatune_jobs USING btree (campaign_id, state, id);
CREATE INDEX ix_megatune_jobs_failures ON public.megatune_jobs USING btree (campaign_id) WHERE (failures > 0);
CREATE INDEX ix_megatune_measurements_planning ON public.megatune_measurements USING btree (target_id, regime, provenance, status, workload_id, config_id, stage, median_us, low_us, high_us, revision);
CREATE INDEX ix_megatune_plans_name ON public.megatune_plans USING btree (name);
CREATE INDEX ix_megatune_plans_target_id ON public.megatune_plans USING btree (target_id);
CREATE INDEX ix_megatune_priors_format ON public.megatune_priors USING btree (format);
CREATE INDEX ix_megatune_repeats_campaign_id ON public.megatune_repeats USING btree (campaign_id);
CREATE INDEX ix_megatune_repeats_target_id ON public.megatune_repeats USING btree (target_id);
CREATE INDEX ix_megatune_reviews_other_id ON public.megatune_reviews USING btree (other_id);
CREATE INDEX ix_megatune_reviews_plan_id ON public.megatune_reviews USING btree (plan_id);
CREATE INDEX ix_megatune_trials_measurement_id ON public.megatune_trials USING btree (measurement_id);
CREATE INDEX ix_megatune_verifications_plan_id ON public.megatune_verifications USING btree (plan_id);
CREATE INDEX ix_megatune_workers_campaign_id ON public.megatune_workers USING btree (campaign_id);
CREATE INDEX ix_megatune_workloads_operator_shape_tokens ON public.megatune_workloads USING btree (operator, shape, tokens);
CREATE UNIQUE INDEX uq_megatune_measurements_final ON public.megatune_measurements USING btree (workload_id, target_id, regime, provenance, config_id, session) WHERE ((stage)::text = 'final'::text);
CREATE UNIQUE INDEX uq_megatune_measurements_search ON public.megatune_measurements USING btree (workload_id, target_id, regime, provenance, config_id, revision) WHERE ((stage)::text = 'search'::text);
CREATE UNIQUE INDEX uq_megatune_plans_in_service ON public.megatune_plans USING btree (target_id, model, worlds) WHERE ((state)::text = 'exported'::text);
CREATE TRIGGER tr_megatune_campaign_log_delete BEFORE DELETE ON public.megatune_campaign_log FOR EACH ROW EXECUTE FUNCTION public.megatune_refuse('megatune_campaign_log: nothing that was recorded is deleted');
CREATE TRIGGER tr_megatune_campaign_log_truncate BEFORE TRUNCATE ON public.megatune_campaign_log FOR EACH STATEMENT EXECUTE FUNCTION public.megatune_refuse('megatune_campaign_log: nothing that was recorded is deleted');
CREATE TRIGGER tr_megatune_campaign_log_update BEFORE UPDATE ON public.megatune_campaign_log FOR EACH ROW EXECUTE FUNCTION public.megatune_refuse('megatune_campaign_log: an entry is never changed');
CREATE TRIGGER tr_megatune_configs_update BEFORE UPDATE OF id, digest, operator, variant, params ON public.megatune_configs FOR EACH ROW EXECUTE FUNCTION public.megatune_refuse('megatune_configs: what was measured is never changed');
CREATE TRIGGER tr_megatune_exports_delete BEFORE DELETE ON public.megatune_exports FOR EACH ROW EXECUTE FUNCTION public.megatune_refuse('megatune_exports: nothing that was recorded is deleted');
CREATE TRIGGER tr_megatune_exports_truncate BEFORE TRUNCATE ON public.megatune_exports FOR EACH STATEMENT EXECUTE FUNCTION public.megatune_refuse('megatune_exports: nothing that was recorded is deleted');
CREATE TRIGGER tr_megatune_exports_update BEFORE UPDATE ON public.megatune_exports FOR EACH ROW EXECUTE FUNCTION public.megatune_refuse('megatune_exports: an entry is never changed');
CREATE TRIGGER tr_megatune_measurements_delete BEFORE DELETE ON public.megatune_measurements FOR EACH ROW EXECUTE FUNCTION public.megatune_refuse('megatune_measurements: nothing that was recorded is deleted');
CREATE TRIGGER tr_megatune_measurements_truncate BEFORE TRUNCATE ON public.megatune_measurements FOR EACH STATEMENT EXECUTE FUNCTION public.megatune_refuse('megatune_measurements: nothing that was recorded is deleted');
CREATE TRIGGER tr_megatune_measurements_update BEFORE UPDATE OF workload_id, config_id, target_id, regime, provenance, revision, samples, median_us ON public.megatune_measurements FOR EACH ROW EXECUTE FUNCTION public.megatune_refuse('megatune_measurements: a measurement is never changed: measure again');
CREATE TRIGGER tr_megatune_measurements_update_parts BEFORE UPDATE OF parts ON public.megatune_measurements FOR EACH ROW EXECUTE FUNCTION public.megatune_refuse('megatune_measurements: a measurement is never changed: measure again');
CREATE TRIGGER tr_megatune_measurements_update_row BEFORE UPDATE ON public.megatune_measurements FOR EACH ROW EXECUTE FUNCTION public.megatune_refuse('megatune_measurements: a measurement is never changed: measure again');
CREATE TRIGGER tr_megatune_plans_delete BEFORE DELETE ON public.megatune_plans FOR EACH ROW EXECUTE FUNCTION public.megatune_refuse('megatune_plans: nothing that was recorded is deleted');
CREATE TRIGGER tr_megatune_plans_truncate BEFORE TRUNCATE ON public.megatune_plans FOR EACH STATEMENT EXECUTE FUNCTION public.megatune_refuse('megatune_plans: nothing that was recorded is deleted');
CREATE TRIGGER tr_megatune_plans_update BEFORE UPDATE OF digest, name, content, target_id, created_at, model, worlds ON public.megatune_plans FOR EACH ROW EXECUTE FUNCTION public.megatune_refuse('megatune_plans: a plan is never changed: make another');
CREATE TRIGGER tr_megatune_plans_update_id BEFORE UPDATE OF id ON public.megatune_plans FOR EACH ROW EXECUTE FUNCTION public.megatune_refuse('megatune_plans: a plan is never changed: make another');
CREATE TRIGGER tr_megatune_repeats_delete BEFORE DELETE ON public.megatune_repeats FOR EACH ROW EXECUTE FUNCTION public.megatune_refuse('megatune_repeats: nothing that was recorded is deleted');
CREATE TRIGGER tr_megatune_repeats_truncate BEFORE TRUNCATE ON public.megatune_repeats FOR EACH STATEMENT EXECUTE FUNCTION public.megatune_refuse('megatune_repeats: nothing that was recorded is deleted');
CREATE TRIGGER tr_megatune_repeats_update BEFORE UPDATE ON public.megatune_repeats FOR EACH ROW EXECUTE FUNCTION public.megatune_refuse('megatune_repeats: an entry is never changed');
CREATE TRIGGER tr_megatune_reviews_delete BEFORE DELETE ON public.megatune_reviews FOR EACH ROW EXECUTE FUNCTION public.megatune_refuse('megatune_reviews: nothing that was recorded is deleted');
CREATE TRIGGER tr_megatune_reviews_truncate BEFORE TRUNCATE ON public.megatune_reviews FOR EACH STATEMENT EXECUTE FUNCTION public.megatune_refuse('megatune_reviews: nothing that was recorded is deleted');
CREATE TRIGGER tr_megatune_reviews_update BEFORE UPDATE ON public.megatune_reviews FOR EACH ROW EXECUTE FUNCTION public.megatune_refuse('megatune_reviews: an entry is never changed');
CREATE TRIGGER tr_megatune_targets_update BEFORE UPDATE OF id, digest, hardware, toolchain ON public.megatune_targets FOR EACH ROW EXECUTE FUNCTION public.megatune_refuse('megatune_targets: what was measured is never changed');
CREATE TRIGGER tr_megatune_verifications_delete BEFORE DELETE ON public.megatune_verifications FOR EACH ROW EXECUTE FUNCTION public.megatune_refuse('megatune_verifications: nothing that was recorded is deleted');
CREATE TRIGGER tr_megatune_verifications_truncate BEFORE TRUNCATE ON public.megatune_verifications FOR EACH STATEMENT EXECUTE FUNCTION public.megatune_refuse('megatune_verifications: nothing that was recorded is deleted');
CREATE TRIGGER tr_megatune_verifications_update BEFORE UPDATE ON public.megatune_verifications FOR EACH ROW EXECUTE FUNCTION public.megatune_refuse('megatune_verifications: an entry is never changed');
CREATE TRIGGER tr_megatune_workloads_update BEFORE UPDATE OF id, digest, operator, shape, dims, tokens, dtype, world, routing ON public.megatune_workloads FOR EACH ROW EXECUTE FUNCTION public.megatune_refuse('megatune_workloads: what was measured is never changed');
ALTER TABLE ONLY public.megatune_campaign_log
    ADD CONSTRAINT fk_megatune_campaign_log_campaign_id_megatune_campaigns FOREIGN KEY (campaign_id) REFERENCES public.megatune_campaigns(id);
ALTER TABLE ONLY public.megatune_campaigns
    ADD CONSTRAINT fk_megatune_campaigns_target_id_megatune_targets FOREIGN KEY (target_id) REFERENCES public.megatune_targets(id);
ALTER TABLE ONLY public.megatune_coordinators
    ADD CONSTRAINT fk_megatune_coordinators_campaign_id_megatune_campaigns FOREIGN KEY (campaign_id) REFERENCES public.megatune_campaigns(id);
ALTER TABLE ONLY public.megatune_exports
    ADD CONSTRAINT fk_megatune_exports_plan_id_megatune_plans FOREIGN KEY (plan_id) REFERENCES public.megatune_plans(id);
ALTER TABLE ONLY public.megatune_jobs
    ADD CONSTRAINT fk_megatune_jobs_campaign_id_megatune_campaigns FOREIGN KEY (campaign_id) REFERENCES public.megatune_campaigns(id);
ALTER TABLE ONLY public.megatune_jobs
    ADD CONSTRAINT fk_megatune_jobs_measurement_id_megatune_measurements FOREIGN KEY (measurement_id) REFERENCES public.megatune_measurements(id);
ALTER TABLE ONLY public.megatune_jobs
    ADD CONSTRAINT fk_megatune_jobs_worker_id_megatune_workers FOREIGN KEY (worker_id) REFERENCES public.megatune_workers(id);
ALTER TABLE ONLY public.megatune_jobs
    ADD CONSTRAINT fk_megatune_jobs_workload_id_megatune_workloads FOREIGN KEY (workload_id) REFERENCES public.megatune_workloads(id);
ALTER TABLE ONLY public.megatune_measurements
    ADD CONSTRAINT fk_megatune_measurements_config_id_megatune_configs FOREIGN KEY (config_id) REFERENCES public.megatune_configs(id);
ALTER TABLE ONLY public.megatune_measurements
    ADD CONSTRAINT fk_megatune_measurements_target_id_megatune_targets FOREIGN KEY (target_id) REFERENCES public.megatune_targets(id);
ALTER TABLE ONLY public.megatune_measurements
    ADD CONSTRAINT fk_megatune_measurements_workload_id_megatune_workloads FOREIGN KEY (workload_id) REFERENCES public.megatune_workloads(id);
ALTER TABLE ONLY public.megatune_plans
    ADD CONSTRAINT fk_megatune_plans_target_id_megatune_targets FOREIGN KEY (target_id) REFERENCES public.megatune_targets(id);
ALTER TABLE ONLY public.megatune_repeats
    ADD CONSTRAINT fk_megatune_repeats_campaign_id_megatune_campaigns FOREIGN KEY (campaign_id) REFERENCES public.megatune_campaigns(id);
ALTER TABLE ONLY public.megatune_repeats
    ADD CONSTRAINT fk_megatune_repeats_target_id_megatune_targets FOREIGN KEY (target_id) REFERENCES public.megatune_targets(id);
ALTER TABLE ONLY public.megatune_reviews
    ADD CONSTRAINT fk_megatune_reviews_other_id_megatune_plans FOREIGN KEY (other_id) REFERENCES public.megatune_plans(id);
ALTER TABLE ONLY public.megatune_reviews
    ADD CONSTRAINT fk_megatune_reviews_plan_id_megatune_plans FOREIGN KEY (plan_id) REFERENCES public.megatune_plans(id);
ALTER TABLE ONLY public.megatune_trials
    ADD CONSTRAINT fk_megatune_trials_campaign_id_megatune_campaigns FOREIGN KEY (campaign_id) REFERENCES public.megatune_campaigns(id);
ALTER TABLE ONLY public.megatune_trials
    ADD CONSTRAINT fk_megatune_trials_config_id_megatune_configs FOREIGN KEY (config_id) REFERENCES public.megatune_configs(id);
ALTER TABLE ONLY public.megatune_trials
    ADD CONSTRAINT fk_megatune_trials_measurement_id_megatune_measurements FOREIGN KEY (measurement_id) REFERENCES public.megatune_measurements(id);
ALTER TABLE ONLY public.megatune_trials
    ADD CONSTRAINT fk_megatune_trials_workload_id_megatune_workloads FOREIGN KEY (workload_id) REFERENCES public.megatune_workloads(id);
ALTER TABLE ONLY public.megatune_verifications
    ADD CONSTRAINT fk_megatune_verifications_plan_id_megatune_plans FOREIGN KEY (plan_id) REFERENCES public.megatune_plans(id);
ALTER TABLE ONLY public.megatune_verifications
    ADD CONSTRAINT fk_megatune_verifications_target_id_megatune_targets FOREIGN KEY (target_id) REFERENCES public.megatune_targets(id);
ALTER TABLE ONLY public.megatune_workers
    ADD CONSTRAINT fk_megatune_workers_campaign_id_megatune_campaigns FOREIGN KEY (campaign_id) REFERENCES public.megatune_campaigns(id);
ALTER TABLE ONLY public.megatune_workers
    ADD CONSTRAINT fk_megatune_workers_target_id_megatune_targets FOREIGN KEY (target_id) REFERENCES public.megatune_targets(id);
