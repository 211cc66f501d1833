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
    wall_s double precision NOT NULL
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
    samples bytea
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
    created_at timestamp without time zone NOT NULL
);
CREATE SEQUENCE public.megatune_plans_id_seq
    AS integer
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.megatune_plans_id_seq OWNED BY public.megatune_plans.id;
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
    created_at timestamp without time zone NOT NULL
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
ALTER TABLE ONLY public.megatune_campaigns ALTER COLUMN id SET DEFAULT nextval('public.megatune_campaigns_id_seq'::regclass);
ALTER TABLE ONLY public.megatune_configs ALTER COLUMN id SET DEFAULT nextval('public.megatune_configs_id_seq'::regclass);
ALTER TABLE ONLY public.megatune_measurements ALTER COLUMN id SET DEFAULT nextval('public.megatune_measurements_id_seq'::regclass);
ALTER TABLE ONLY public.megatune_plans ALTER COLUMN id SET DEFAULT nextval('public.megatune_plans_id_seq'::regclass);
ALTER TABLE ONLY public.megatune_targets ALTER COLUMN id SET DEFAULT nextval('public.megatune_targets_id_seq'::regclass);
ALTER TABLE ONLY public.megatune_trials ALTER COLUMN id SET DEFAULT nextval('public.megatune_trials_id_seq'::regclass);
ALTER TABLE ONLY public.megatune_workloads ALTER COLUMN id SET DEFAULT nextval('public.megatune_workloads_id_seq'::regclass);
INSERT INTO public.megatune_alembic_version VALUES ('0001');
INSERT INTO public.megatune_artifacts VALUES (1, 'artifact', 'sm_90a', 'entry', 96, 0, 20480, '4.8.1', '2026-11-30 12:45:35.965428');
INSERT INTO public.megatune_campaigns VALUES (1, 'first', 'name: first', 'file', 1, 'finished', '{"trials":4}', '2026-11-30 12:45:35.967261', '2026-08-01 11:00:00', '2026-08-01 13:00:00', 5400, 7200);
INSERT INTO public.megatune_configs VALUES (1, 'projection', 'config-0', 'simt', '{"rows":0}', NULL, '2026-11-30 12:45:35.950984');
INSERT INTO public.megatune_configs VALUES (2, 'projection', 'config-1', 'mma', '{"rows":1}', NULL, '2026-11-30 12:45:35.951688');
INSERT INTO public.megatune_configs VALUES (3, 'projection', 'config-2', 'cublas', '{}', NULL, '2026-11-30 12:45:35.960349');
INSERT INTO public.megatune_configs VALUES (4, 'projection', 'config-3', 'simt', '{"rows":8}', true, '2026-11-30 12:45:35.961087');
INSERT INTO public.megatune_measurements VALUES (1, 2, 1, 1, 'cold-graph', 'search', 'ok', 'measured', 'first', '2026-08-01 12:00:00', 10, 9.9, 10.1, 0, NULL, 0, '', 0, 0, 'artifact', '\x0001', '\x0000184100002841');
INSERT INTO public.megatune_measurements VALUES (2, 2, 2, 1, 'cold-graph', 'search', 'hang', 'measured', 'first', '2026-08-01 12:00:00', NULL, NULL, NULL, 0, NULL, 0, 'it was hang', 0, 0, '', NULL, NULL);
INSERT INTO public.megatune_measurements VALUES (3, 2, 1, 1, 'cold-graph', 'final', 'ok', 'measured', 'first', '2026-08-01 12:00:00', 10, 9.9, 10.1, 0, NULL, 0, '', 0, 0, '', NULL, '\x0000204100002041');
INSERT INTO public.megatune_measurements VALUES (4, 2, 3, 1, 'cold-graph', 'final', 'ok', 'measured', 'first', '2026-08-01 12:00:00', 11, 10.89, 11.11, 0, NULL, 0, '', 0, 0, '', NULL, '\x0000304100003041');
INSERT INTO public.megatune_plans VALUES (1, 'plan', 'first', '{"bands":[]}', 'approved', 1, '2026-11-30 12:45:36.025342');
INSERT INTO public.megatune_targets VALUES (1, '7a7a7a7a7a7a7a7a', '{"gpu":"H200"}', '{"driver":"580.1"}', '2026-11-30 12:45:35.937121');
INSERT INTO public.megatune_trials VALUES (1, 1, 2, 1, 0, 'done', 1, 'sampler', false, '2026-11-30 12:45:35.98946');
INSERT INTO public.megatune_trials VALUES (2, 1, 2, 2, 1, 'done', 2, 'sampler', false, '2026-11-30 12:45:35.991709');
INSERT INTO public.megatune_trials VALUES (3, 1, 2, 1, 2, 'done', 3, 'finalist', false, '2026-11-30 12:45:36.0027');
INSERT INTO public.megatune_trials VALUES (4, 1, 2, 3, 3, 'done', 4, 'finalist', false, '2026-11-30 12:45:36.003935');
INSERT INTO public.megatune_workloads VALUES (1, 'projection-0', 'projection', 'k=7168,n=6288', '{"k":7168,"n":6288}', 0, 'bf16', 1, 'none', '2026-11-30 12:45:35.939526');
INSERT INTO public.megatune_workloads VALUES (2, 'projection-1', 'projection', 'k=7168,n=6288', '{"k":7168,"n":6288}', 1, 'bf16', 1, 'none', '2026-11-30 12:45:35.948726');
SELECT pg_catalog.setval('public.megatune_artifacts_id_seq', 1, true);
SELECT pg_catalog.setval('public.megatune_campaigns_id_seq', 1, true);
SELECT pg_catalog.setval('public.megatune_configs_id_seq', 4, true);
SELECT pg_catalog.setval('public.megatune_measurements_id_seq', 4, true);
SELECT pg_catalog.setval('public.megatune_plans_id_seq', 1, true);
SELECT pg_catalog.setval('public.megatune_targets_id_seq', 1, true);
SELECT pg_catalog.setval('public.megatune_trials_id_seq', 4, true);
SELECT pg_catalog.setval('public.megatune_workloads_id_seq', 2, true);
ALTER TABLE ONLY public.megatune_alembic_version
    ADD CONSTRAINT megatune_alembic_version_pkc PRIMARY KEY (version_num);
ALTER TABLE ONLY public.megatune_artifacts
    ADD CONSTRAINT pk_megatune_artifacts PRIMARY KEY (id);
ALTER TABLE ONLY public.megatune_campaigns
    ADD CONSTRAINT pk_megatune_campaigns PRIMARY KEY (id);
ALTER TABLE ONLY public.megatune_configs
    ADD CONSTRAINT pk_megatune_configs PRIMARY KEY (id);
ALTER TABLE ONLY public.megatune_measurements
    ADD CONSTRAINT pk_megatune_measurements PRIMARY KEY (id);
ALTER TABLE ONLY public.megatune_plans
    ADD CONSTRAINT pk_megatune_plans PRIMARY KEY (id);
ALTER TABLE ONLY public.megatune_targets
    ADD CONSTRAINT pk_megatune_targets PRIMARY KEY (id);
ALTER TABLE ONLY public.megatune_trials
    ADD CONSTRAINT pk_megatune_trials PRIMARY KEY (id);
ALTER TABLE ONLY public.megatune_workloads
    ADD CONSTRAINT pk_megatune_workloads PRIMARY KEY (id);
ALTER TABLE ONLY public.megatune_artifacts
    ADD CONSTRAINT uq_megatune_artifacts_key UNIQUE (key);
ALTER TABLE ONLY public.megatune_campaigns
    ADD CONSTRAINT uq_megatune_campaigns_name UNIQUE (name);
ALTER TABLE ONLY public.megatune_configs
    ADD CONSTRAINT uq_megatune_configs_operator_digest UNIQUE (operator, digest);
ALTER TABLE ONLY public.megatune_plans
    ADD CONSTRAINT uq_megatune_plans_digest UNIQUE (digest);
ALTER TABLE ONLY public.megatune_targets
    ADD CONSTRAINT uq_megatune_targets_digest UNIQUE (digest);
ALTER TABLE ONLY public.megatune_trials
    ADD CONSTRAINT uq_megatune_trials_once UNIQUE (campaign_id, workload_id, number, config_id, reason);
ALTER TABLE ONLY public.megatune_workloads
    ADD CONSTRAINT uq_megatune_workloads_digest UNIQUE (digest);
CREATE INDEX ix_megatune_campaigns_target_id ON public.megatune_campaigns USING btree (target_id);
CREATE INDEX ix_megatune_measurements_planning ON public.megatune_measurements USING btree (target_id, regime, provenance, status, workload_id, config_id, stage, median_us, low_us, high_us);
CREATE INDEX ix_megatune_plans_name ON public.megatune_plans USING btree (name);
CREATE INDEX ix_megatune_plans_target_id ON public.megatune_plans USING btree (target_id);
CREATE INDEX ix_megatune_trials_measurement_id ON public.megatune_trials USING btree (measurement_id);
CREATE INDEX ix_megatune_workloads_operator_shape_tokens ON public.megatune_workloads USING btree (operator, shape, tokens);
CREATE UNIQUE INDEX uq_megatune_measurements_final ON public.megatune_measurements USING btree (workload_id, target_id, regime, provenance, config_id, session) WHERE ((stage)::text = 'final'::text);
CREATE UNIQUE INDEX uq_megatune_measurements_search ON public.megatune_measurements USING btree (workload_id, target_id, regime, provenance, config_id) WHERE ((stage)::text = 'search'::text);
ALTER TABLE ONLY public.megatune_campaigns
    ADD CONSTRAINT fk_megatune_campaigns_target_id_megatune_targets FOREIGN KEY (target_id) REFERENCES public.megatune_targets(id);
ALTER TABLE ONLY public.megatune_measurements
    ADD CONSTRAINT fk_megatune_measurements_config_id_megatune_configs FOREIGN KEY (config_id) REFERENCES public.megatune_configs(id);
ALTER TABLE ONLY public.megatune_measurements
    ADD CONSTRAINT fk_megatune_measurements_target_id_megatune_targets FOREIGN KEY (target_id) REFERENCES public.megatune_targets(id);
ALTER TABLE ONLY public.megatune_measurements
    ADD CONSTRAINT fk_megatune_measurements_workload_id_megatune_workloads FOREIGN KEY (workload_id) REFERENCES public.megatune_workloads(id);
ALTER TABLE ONLY public.megatune_plans
    ADD CONSTRAINT fk_megatune_plans_target_id_megatune_targets FOREIGN KEY (target_id) REFERENCES public.megatune_targets(id);
ALTER TABLE ONLY public.megatune_trials
    ADD CONSTRAINT fk_megatune_trials_campaign_id_megatune_campaigns FOREIGN KEY (campaign_id) REFERENCES public.megatune_campaigns(id);
ALTER TABLE ONLY public.megatune_trials
    ADD CONSTRAINT fk_megatune_trials_config_id_megatune_configs FOREIGN KEY (config_id) REFERENCES public.megatune_configs(id);
ALTER TABLE ONLY public.megatune_trials
    ADD CONSTRAINT fk_megatune_trials_measurement_id_megatune_measurements FOREIGN KEY (measurement_id) REFERENCES public.megatune_measurements(id);
ALTER TABLE ONLY public.megatune_trials
    ADD CONSTRAINT fk_megatune_trials_workload_id_megatune_workloads FOREIGN KEY (workload_id) REFERENCES public.megatune_workloads(id);
