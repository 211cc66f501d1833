BEGIN TRANSACTION;
CREATE TABLE megatune_alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT megatune_alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "megatune_alembic_version" VALUES('0011');
CREATE TABLE megatune_artifacts (
	id INTEGER NOT NULL, 
	"key" VARCHAR(128) NOT NULL, 
	arch VARCHAR(32) NOT NULL, 
	entry TEXT NOT NULL, 
	registers INTEGER NOT NULL, 
	local_bytes INTEGER NOT NULL, 
	cubin_bytes INTEGER NOT NULL, 
	dsl VARCHAR(64) NOT NULL, 
	created_at DATETIME NOT NULL, 
	CONSTRAINT pk_megatune_artifacts PRIMARY KEY (id), 
	CONSTRAINT uq_megatune_artifacts_key UNIQUE ("key")
);
INSERT INTO "megatune_artifacts" VALUES(1,'artifact','sm_90a','entry',96,0,20480,'4.8.1','2026-11-30 22:34:10.518772');
CREATE TABLE megatune_campaign_log (
	id INTEGER NOT NULL, 
	campaign_id INTEGER NOT NULL, 
	at DATETIME NOT NULL, 
	who VARCHAR(256) NOT NULL, 
	action VARCHAR(32) NOT NULL, 
	comment TEXT NOT NULL, 
	CONSTRAINT pk_megatune_campaign_log PRIMARY KEY (id), 
	CONSTRAINT fk_megatune_campaign_log_campaign_id_megatune_campaigns FOREIGN KEY(campaign_id) REFERENCES megatune_campaigns (id)
);
INSERT INTO "megatune_campaign_log" VALUES(1,1,'2026-11-30 22:34:10.552702','somebody','stop','it is enough');
CREATE TABLE megatune_campaigns (
	id INTEGER NOT NULL, 
	name VARCHAR(256) NOT NULL, 
	file_text TEXT NOT NULL, 
	file_digest VARCHAR(64) NOT NULL, 
	target_id INTEGER, 
	state VARCHAR(32) NOT NULL, 
	budget JSON NOT NULL, 
	created_at DATETIME NOT NULL, 
	started_at DATETIME, 
	finished_at DATETIME, 
	measuring_s DOUBLE NOT NULL, 
	wall_s DOUBLE NOT NULL, objective JSON, 
	CONSTRAINT pk_megatune_campaigns PRIMARY KEY (id), 
	CONSTRAINT fk_megatune_campaigns_target_id_megatune_targets FOREIGN KEY(target_id) REFERENCES megatune_targets (id), 
	CONSTRAINT uq_megatune_campaigns_name UNIQUE (name)
);
INSERT INTO "megatune_campaigns" VALUES(1,'first','name: first','file',1,'finished','{"trials":4}','2026-11-30 22:34:10.520090','2026-08-01 11:00:00.000000','2026-08-01 13:00:00.000000',5400.0,7200.0,'{"kind":"mean"}');
CREATE TABLE megatune_configs (
	id INTEGER NOT NULL, 
	operator VARCHAR(64) NOT NULL, 
	digest VARCHAR(64) NOT NULL, 
	variant VARCHAR(64) NOT NULL, 
	params JSON NOT NULL, 
	changes_bits BOOLEAN, 
	created_at DATETIME NOT NULL, 
	CONSTRAINT pk_megatune_configs PRIMARY KEY (id), 
	CONSTRAINT uq_megatune_configs_operator_digest UNIQUE (operator, digest)
);
INSERT INTO "megatune_configs" VALUES(1,'projection','config-0','simt','{"rows":0}',NULL,'2026-11-30 22:34:10.515991');
INSERT INTO "megatune_configs" VALUES(2,'projection','config-1','mma','{"rows":1}',NULL,'2026-11-30 22:34:10.516518');
INSERT INTO "megatune_configs" VALUES(3,'projection','config-2','cublas','{}',NULL,'2026-11-30 22:34:10.516959');
INSERT INTO "megatune_configs" VALUES(4,'projection','config-3','simt','{"rows":8}',1,'2026-11-30 22:34:10.517283');
CREATE TABLE megatune_coordinators (
	campaign_id INTEGER NOT NULL, 
	holder VARCHAR(512) NOT NULL, 
	epoch INTEGER NOT NULL, 
	expires_at DOUBLE NOT NULL, 
	basis VARCHAR(64) NOT NULL, 
	measurements_before INTEGER NOT NULL, 
	trials_before INTEGER NOT NULL, 
	CONSTRAINT pk_megatune_coordinators PRIMARY KEY (campaign_id), 
	CONSTRAINT fk_megatune_coordinators_campaign_id_megatune_campaigns FOREIGN KEY(campaign_id) REFERENCES megatune_campaigns (id)
);
INSERT INTO "megatune_coordinators" VALUES(1,'node1:1:boot:1',1,1.79607807053298020364e+09,'basis',4,4);
CREATE TABLE megatune_exports (
	id INTEGER NOT NULL, 
	plan_id INTEGER NOT NULL, 
	at DATETIME NOT NULL, 
	who VARCHAR(256) NOT NULL, 
	exporter VARCHAR(128) NOT NULL, 
	runtime VARCHAR(128) NOT NULL, 
	runtime_version VARCHAR(64) NOT NULL, 
	files JSON NOT NULL, 
	digest VARCHAR(64) NOT NULL, 
	state VARCHAR(32) NOT NULL, 
	CONSTRAINT pk_megatune_exports PRIMARY KEY (id), 
	CONSTRAINT fk_megatune_exports_plan_id_megatune_plans FOREIGN KEY(plan_id) REFERENCES megatune_plans (id)
);
INSERT INTO "megatune_exports" VALUES(1,1,'2026-11-30 22:34:10.548672','somebody','json','','','{"a":"ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb"}','65e80a73839e9b5bd458e65426ff8a11c235d49dcd49a3aeada9cfb6fda30309','draft');
CREATE TABLE megatune_jobs (
	id INTEGER NOT NULL, 
	campaign_id INTEGER NOT NULL, 
	workload_id INTEGER NOT NULL, 
	stage VARCHAR(32) NOT NULL, 
	number INTEGER NOT NULL, 
	state VARCHAR(32) NOT NULL, 
	content JSON NOT NULL, 
	attempt INTEGER NOT NULL, 
	failures INTEGER NOT NULL, 
	strikes INTEGER NOT NULL, 
	evidence JSON NOT NULL, 
	worker_id INTEGER, 
	expires_at DOUBLE, 
	measurement_id INTEGER, 
	ignored INTEGER NOT NULL, 
	CONSTRAINT pk_megatune_jobs PRIMARY KEY (id), 
	CONSTRAINT fk_megatune_jobs_campaign_id_megatune_campaigns FOREIGN KEY(campaign_id) REFERENCES megatune_campaigns (id), 
	CONSTRAINT fk_megatune_jobs_workload_id_megatune_workloads FOREIGN KEY(workload_id) REFERENCES megatune_workloads (id), 
	CONSTRAINT fk_megatune_jobs_worker_id_megatune_workers FOREIGN KEY(worker_id) REFERENCES megatune_workers (id), 
	CONSTRAINT fk_megatune_jobs_measurement_id_megatune_measurements FOREIGN KEY(measurement_id) REFERENCES megatune_measurements (id), 
	CONSTRAINT uq_megatune_jobs_once UNIQUE (campaign_id, workload_id, stage, number)
);
INSERT INTO "megatune_jobs" VALUES(1,1,2,'search',9,'done','{"regime":"cold-graph","reason":"sampler","configs":[{"id":1,"digest":"config-0","variant":"simt","params":{},"artifacts":[],"compile_s":0.0,"revision":null,"runs":null}]}',1,0,0,'[]',1,NULL,1,0);
CREATE TABLE megatune_measurements (
	id INTEGER NOT NULL, 
	workload_id INTEGER NOT NULL, 
	config_id INTEGER NOT NULL, 
	target_id INTEGER NOT NULL, 
	regime VARCHAR(32) NOT NULL, 
	stage VARCHAR(32) NOT NULL, 
	status VARCHAR(32) NOT NULL, 
	provenance VARCHAR(32) NOT NULL, 
	session VARCHAR(128) NOT NULL, 
	measured_at DATETIME NOT NULL, 
	median_us DOUBLE, 
	low_us DOUBLE, 
	high_us DOUBLE, 
	launches_a_sample INTEGER NOT NULL, 
	sm_clock_mhz INTEGER, 
	flush_bytes INTEGER NOT NULL, 
	reason TEXT NOT NULL, 
	compile_s DOUBLE NOT NULL, 
	measure_s DOUBLE NOT NULL, 
	artifact VARCHAR(128) NOT NULL, 
	throttled BLOB, 
	samples BLOB, revision VARCHAR(64) DEFAULT '' NOT NULL, parts JSON, 
	CONSTRAINT pk_megatune_measurements PRIMARY KEY (id), 
	CONSTRAINT fk_megatune_measurements_config_id_megatune_configs FOREIGN KEY(config_id) REFERENCES megatune_configs (id), 
	CONSTRAINT fk_megatune_measurements_target_id_megatune_targets FOREIGN KEY(target_id) REFERENCES megatune_targets (id), 
	CONSTRAINT fk_megatune_measurements_workload_id_megatune_workloads FOREIGN KEY(workload_id) REFERENCES megatune_workloads (id)
);
INSERT INTO "megatune_measurements" VALUES(1,2,1,1,'cold-graph','search','ok','measured','first','2026-08-01 12:00:00.000000',10.0,9.9,10.1,0,NULL,0,'',0.0,0.0,'artifact',X'0001',X'0000184100002841','r1',NULL);
INSERT INTO "megatune_measurements" VALUES(2,2,2,1,'cold-graph','search','hang','measured','first','2026-08-01 12:00:00.000000',NULL,NULL,NULL,0,NULL,0,'it was hang',0.0,0.0,'',NULL,NULL,'',NULL);
INSERT INTO "megatune_measurements" VALUES(3,2,1,1,'cold-graph','final','ok','measured','first','2026-08-01 12:00:00.000000',10.0,9.9,10.1,0,NULL,0,'',0.0,0.0,'',NULL,X'0000204100002041','',NULL);
INSERT INTO "megatune_measurements" VALUES(4,2,3,1,'cold-graph','final','ok','measured','first','2026-08-01 12:00:00.000000',11.0,10.89,11.11,0,NULL,0,'',0.0,0.0,'',NULL,X'0000304100003041','','{"idle":5.25}');
CREATE TABLE megatune_plans (
	id INTEGER NOT NULL, 
	digest VARCHAR(64) NOT NULL, 
	name VARCHAR(256) NOT NULL, 
	content TEXT NOT NULL, 
	state VARCHAR(32) NOT NULL, 
	target_id INTEGER NOT NULL, 
	created_at DATETIME NOT NULL, model VARCHAR(256) DEFAULT '' NOT NULL, worlds VARCHAR(64) DEFAULT '' NOT NULL, 
	CONSTRAINT pk_megatune_plans PRIMARY KEY (id), 
	CONSTRAINT fk_megatune_plans_target_id_megatune_targets FOREIGN KEY(target_id) REFERENCES megatune_targets (id), 
	CONSTRAINT uq_megatune_plans_digest UNIQUE (digest)
);
INSERT INTO "megatune_plans" VALUES(1,'plan','first','{"bands":[]}','approved',1,'2026-11-30 22:34:10.545726','first','');
CREATE TABLE megatune_priors (
	id INTEGER NOT NULL, 
	digest VARCHAR(64) NOT NULL, 
	format VARCHAR(64) NOT NULL, 
	source VARCHAR(512) NOT NULL, 
	place JSON NOT NULL, 
	tokens INTEGER, 
	entry JSON NOT NULL, 
	reason TEXT NOT NULL, 
	created_at DATETIME NOT NULL, 
	CONSTRAINT pk_megatune_priors PRIMARY KEY (id), 
	CONSTRAINT uq_megatune_priors_digest UNIQUE (digest)
);
INSERT INTO "megatune_priors" VALUES(1,'prior','vllm-moe-table','E=8,N=64,device_name=NVIDIA_H200.json','{"E":8,"N":64}',16,'{"BLOCK_SIZE_M":16}','no operator here reads it','2026-11-30 22:34:10.551926');
CREATE TABLE megatune_repeats (
	id INTEGER NOT NULL, 
	campaign_id INTEGER NOT NULL, 
	target_id INTEGER NOT NULL, 
	regime VARCHAR(32) NOT NULL, 
	provenance VARCHAR(32) NOT NULL, 
	at DATETIME NOT NULL, 
	who VARCHAR(256) NOT NULL, 
	repeats INTEGER NOT NULL, 
	flip_rate DOUBLE NOT NULL, 
	regret DOUBLE NOT NULL, 
	document TEXT NOT NULL, 
	CONSTRAINT pk_megatune_repeats PRIMARY KEY (id), 
	CONSTRAINT fk_megatune_repeats_campaign_id_megatune_campaigns FOREIGN KEY(campaign_id) REFERENCES megatune_campaigns (id), 
	CONSTRAINT fk_megatune_repeats_target_id_megatune_targets FOREIGN KEY(target_id) REFERENCES megatune_targets (id)
);
INSERT INTO "megatune_repeats" VALUES(1,1,1,'cold-graph','measured','2026-08-02 13:00:00.000000','somebody',2,0.25,0.5,'{}');
CREATE TABLE megatune_reviews (
	id INTEGER NOT NULL, 
	plan_id INTEGER NOT NULL, 
	at DATETIME NOT NULL, 
	who VARCHAR(256) NOT NULL, 
	action VARCHAR(32) NOT NULL, 
	comment TEXT NOT NULL, 
	"before" VARCHAR(32) NOT NULL, 
	"after" VARCHAR(32) NOT NULL, 
	other_id INTEGER, 
	CONSTRAINT pk_megatune_reviews PRIMARY KEY (id), 
	CONSTRAINT fk_megatune_reviews_plan_id_megatune_plans FOREIGN KEY(plan_id) REFERENCES megatune_plans (id), 
	CONSTRAINT fk_megatune_reviews_other_id_megatune_plans FOREIGN KEY(other_id) REFERENCES megatune_plans (id)
);
INSERT INTO "megatune_reviews" VALUES(1,1,'2026-11-30 22:34:10.547732','somebody','export','unreviewed','draft','draft',NULL);
INSERT INTO "megatune_reviews" VALUES(2,1,'2026-11-30 22:34:10.549782','somebody','approve','as measured','draft','approved',NULL);
CREATE TABLE megatune_targets (
	id INTEGER NOT NULL, 
	digest VARCHAR(64) NOT NULL, 
	hardware JSON NOT NULL, 
	toolchain JSON NOT NULL, 
	created_at DATETIME NOT NULL, 
	CONSTRAINT pk_megatune_targets PRIMARY KEY (id), 
	CONSTRAINT uq_megatune_targets_digest UNIQUE (digest)
);
INSERT INTO "megatune_targets" VALUES(1,'7a7a7a7a7a7a7a7a','{"gpu":"H200"}','{"driver":"580.1"}','2026-11-30 22:34:10.512364');
CREATE TABLE megatune_trials (
	id INTEGER NOT NULL, 
	campaign_id INTEGER NOT NULL, 
	workload_id INTEGER NOT NULL, 
	config_id INTEGER NOT NULL, 
	number INTEGER NOT NULL, 
	state VARCHAR(32) NOT NULL, 
	measurement_id INTEGER, 
	reason VARCHAR(256) NOT NULL, 
	reused BOOLEAN NOT NULL, 
	created_at DATETIME NOT NULL, 
	CONSTRAINT pk_megatune_trials PRIMARY KEY (id), 
	CONSTRAINT fk_megatune_trials_campaign_id_megatune_campaigns FOREIGN KEY(campaign_id) REFERENCES megatune_campaigns (id), 
	CONSTRAINT fk_megatune_trials_config_id_megatune_configs FOREIGN KEY(config_id) REFERENCES megatune_configs (id), 
	CONSTRAINT fk_megatune_trials_measurement_id_megatune_measurements FOREIGN KEY(measurement_id) REFERENCES megatune_measurements (id), 
	CONSTRAINT fk_megatune_trials_workload_id_megatune_workloads FOREIGN KEY(workload_id) REFERENCES megatune_workloads (id), 
	CONSTRAINT uq_megatune_trials_once UNIQUE (campaign_id, workload_id, number, config_id, reason)
);
INSERT INTO "megatune_trials" VALUES(1,1,2,1,0,'done',1,'sampler',0,'2026-11-30 22:34:10.525164');
INSERT INTO "megatune_trials" VALUES(2,1,2,2,1,'done',2,'sampler',0,'2026-11-30 22:34:10.526950');
INSERT INTO "megatune_trials" VALUES(3,1,2,1,2,'done',3,'finalist',0,'2026-11-30 22:34:10.528620');
INSERT INTO "megatune_trials" VALUES(4,1,2,3,3,'done',4,'finalist',0,'2026-11-30 22:34:10.530242');
INSERT INTO "megatune_trials" VALUES(5,1,2,1,9,'done',1,'sampler',0,'2026-11-30 22:34:10.537755');
CREATE TABLE megatune_verifications (
	id INTEGER NOT NULL, 
	plan_id INTEGER NOT NULL, 
	target_id INTEGER NOT NULL, 
	at DATETIME NOT NULL, 
	who VARCHAR(256) NOT NULL, 
	provenance VARCHAR(32) NOT NULL, 
	verdict VARCHAR(32) NOT NULL, 
	reason TEXT NOT NULL, 
	document TEXT NOT NULL, 
	CONSTRAINT pk_megatune_verifications PRIMARY KEY (id), 
	CONSTRAINT fk_megatune_verifications_plan_id_megatune_plans FOREIGN KEY(plan_id) REFERENCES megatune_plans (id), 
	CONSTRAINT fk_megatune_verifications_target_id_megatune_targets FOREIGN KEY(target_id) REFERENCES megatune_targets (id)
);
INSERT INTO "megatune_verifications" VALUES(1,1,1,'2026-08-02 12:00:00.000000','somebody','measured','holds','as measured','{}');
CREATE TABLE megatune_workers (
	id INTEGER NOT NULL, 
	campaign_id INTEGER NOT NULL, 
	place VARCHAR(512) NOT NULL, 
	target_id INTEGER NOT NULL, 
	provenance VARCHAR(32) NOT NULL, 
	needs_artifacts BOOLEAN NOT NULL, 
	started_at DOUBLE NOT NULL, 
	seen_at DOUBLE NOT NULL, 
	ended TEXT NOT NULL, 
	CONSTRAINT pk_megatune_workers PRIMARY KEY (id), 
	CONSTRAINT fk_megatune_workers_campaign_id_megatune_campaigns FOREIGN KEY(campaign_id) REFERENCES megatune_campaigns (id), 
	CONSTRAINT fk_megatune_workers_target_id_megatune_targets FOREIGN KEY(target_id) REFERENCES megatune_targets (id)
);
INSERT INTO "megatune_workers" VALUES(1,1,'vm:3064:16e29640-bf74-4a3e-b5ea-ea7c221135f4/4026531836:3710460',1,'measured',1,1.79607805053599786757e+09,1.79607805053599786757e+09,'');
CREATE TABLE megatune_workloads (
	id INTEGER NOT NULL, 
	digest VARCHAR(64) NOT NULL, 
	operator VARCHAR(64) NOT NULL, 
	shape VARCHAR(256) NOT NULL, 
	dims JSON NOT NULL, 
	tokens INTEGER NOT NULL, 
	dtype VARCHAR(32) NOT NULL, 
	world INTEGER NOT NULL, 
	routing VARCHAR(64) NOT NULL, 
	created_at DATETIME NOT NULL, facts JSON, 
	CONSTRAINT pk_megatune_workloads PRIMARY KEY (id), 
	CONSTRAINT uq_megatune_workloads_digest UNIQUE (digest)
);
INSERT INTO "megatune_workloads" VALUES(1,'projection-0','projection','k=7168,n=6288','{"k":7168,"n":6288}',0,'bf16',1,'none','2026-11-30 22:34:10.514181',NULL);
INSERT INTO "megatune_workloads" VALUES(2,'projection-1','projection','k=7168,n=6288','{"k":7168,"n":6288}',1,'bf16',1,'none','2026-11-30 22:34:10.514796',NULL);
CREATE INDEX ix_megatune_workloads_operator_shape_tokens ON megatune_workloads (operator, shape, tokens);
CREATE INDEX ix_megatune_campaigns_target_id ON megatune_campaigns (target_id);
CREATE UNIQUE INDEX uq_megatune_measurements_final ON megatune_measurements (workload_id, target_id, regime, provenance, config_id, session) WHERE stage = 'final';
CREATE INDEX ix_megatune_plans_name ON megatune_plans (name);
CREATE INDEX ix_megatune_plans_target_id ON megatune_plans (target_id);
CREATE INDEX ix_megatune_trials_measurement_id ON megatune_trials (measurement_id);
CREATE UNIQUE INDEX uq_megatune_measurements_search ON megatune_measurements (workload_id, target_id, regime, provenance, config_id, revision) WHERE stage = 'search';
CREATE INDEX ix_megatune_measurements_planning ON megatune_measurements (target_id, regime, provenance, status, workload_id, config_id, stage, median_us, low_us, high_us, revision);
CREATE INDEX ix_megatune_reviews_plan_id ON megatune_reviews (plan_id);
CREATE INDEX ix_megatune_reviews_other_id ON megatune_reviews (other_id);
CREATE INDEX ix_megatune_exports_plan_id ON megatune_exports (plan_id);
CREATE UNIQUE INDEX uq_megatune_plans_in_service ON megatune_plans (target_id, model, worlds) WHERE state = 'exported';
CREATE TRIGGER tr_megatune_reviews_delete BEFORE DELETE ON megatune_reviews BEGIN SELECT RAISE(ABORT, 'megatune_reviews: nothing that was recorded is deleted'); END;
CREATE TRIGGER tr_megatune_exports_delete BEFORE DELETE ON megatune_exports BEGIN SELECT RAISE(ABORT, 'megatune_exports: nothing that was recorded is deleted'); END;
CREATE TRIGGER tr_megatune_plans_delete BEFORE DELETE ON megatune_plans BEGIN SELECT RAISE(ABORT, 'megatune_plans: nothing that was recorded is deleted'); END;
CREATE TRIGGER tr_megatune_measurements_delete BEFORE DELETE ON megatune_measurements BEGIN SELECT RAISE(ABORT, 'megatune_measurements: nothing that was recorded is deleted'); END;
CREATE TRIGGER tr_megatune_reviews_update BEFORE UPDATE ON megatune_reviews BEGIN SELECT RAISE(ABORT, 'megatune_reviews: an entry is never changed'); END;
CREATE TRIGGER tr_megatune_exports_update BEFORE UPDATE ON megatune_exports BEGIN SELECT RAISE(ABORT, 'megatune_exports: an entry is never changed'); END;
CREATE TRIGGER tr_megatune_plans_update BEFORE UPDATE OF digest, name, content, target_id, created_at, model, worlds ON megatune_plans BEGIN SELECT RAISE(ABORT, 'megatune_plans: a plan is never changed: make another'); END;
CREATE TRIGGER tr_megatune_measurements_update BEFORE UPDATE OF workload_id, config_id, target_id, regime, provenance, revision, samples, median_us ON megatune_measurements BEGIN SELECT RAISE(ABORT, 'megatune_measurements: a measurement is never changed: measure again'); END;
CREATE TRIGGER tr_megatune_measurements_update_parts BEFORE UPDATE OF parts ON megatune_measurements BEGIN SELECT RAISE(ABORT, 'megatune_measurements: a measurement is never changed: measure again'); END;
CREATE INDEX ix_megatune_workers_campaign_id ON megatune_workers (campaign_id);
CREATE INDEX ix_megatune_jobs_campaign_id_state_id ON megatune_jobs (campaign_id, state, id);
CREATE INDEX ix_megatune_jobs_failures ON megatune_jobs (campaign_id) WHERE failures > 0;
CREATE INDEX ix_megatune_verifications_plan_id ON megatune_verifications (plan_id);
CREATE INDEX ix_megatune_repeats_campaign_id ON megatune_repeats (campaign_id);
CREATE INDEX ix_megatune_repeats_target_id ON megatune_repeats (target_id);
CREATE TRIGGER tr_megatune_verifications_delete BEFORE DELETE ON megatune_verifications BEGIN SELECT RAISE(ABORT, 'megatune_verifications: nothing that was recorded is deleted'); END;
CREATE TRIGGER tr_megatune_verifications_update BEFORE UPDATE ON megatune_verifications BEGIN SELECT RAISE(ABORT, 'megatune_verifications: an entry is never changed'); END;
CREATE TRIGGER tr_megatune_repeats_delete BEFORE DELETE ON megatune_repeats BEGIN SELECT RAISE(ABORT, 'megatune_repeats: nothing that was recorded is deleted'); END;
CREATE TRIGGER tr_megatune_repeats_update BEFORE UPDATE ON megatune_repeats BEGIN SELECT RAISE(ABORT, 'megatune_repeats: an entry is never changed'); END;
CREATE INDEX ix_megatune_priors_format ON megatune_priors (format);
CREATE INDEX ix_megatune_campaign_log_campaign_id ON megatune_campaign_log (campaign_id);
CREATE TRIGGER tr_megatune_campaign_log_delete BEFORE DELETE ON megatune_campaign_log BEGIN SELECT RAISE(ABORT, 'megatune_campaign_log: nothing that was recorded is deleted'); END;
CREATE TRIGGER tr_megatune_campaign_log_update BEFORE UPDATE ON megatune_campaign_log BEGIN SELECT RAISE(ABORT, 'megatune_campaign_log: an entry is never changed'); END;
CREATE TRIGGER tr_megatune_measurements_update_row BEFORE UPDATE ON megatune_measurements BEGIN SELECT RAISE(ABORT, 'megatune_measurements: a measurement is never changed: measure again'); END;
CREATE TRIGGER tr_megatune_plans_update_id BEFORE UPDATE OF id ON megatune_plans BEGIN SELECT RAISE(ABORT, 'megatune_plans: a plan is never changed: make another'); END;
CREATE TRIGGER tr_megatune_targets_update BEFORE UPDATE OF id, digest, hardware, toolchain ON megatune_targets BEGIN SELECT RAISE(ABORT, 'megatune_targets: what was measured is never changed'); END;
CREATE TRIGGER tr_megatune_workloads_update BEFORE UPDATE OF id, digest, operator, shape, dims, tokens, dtype, world, routing ON megatune_workloads BEGIN SELECT RAISE(ABORT, 'megatune_workloads: what was measured is never changed'); END;
CREATE TRIGGER tr_megatune_configs_update BEFORE UPDATE OF id, digest, operator, variant, params ON megatune_configs BEGIN SELECT RAISE(ABORT, 'megatune_configs: what was measured is never changed'); END;
CREATE TRIGGER tr_megatune_measurements_replace_id BEFORE INSERT ON megatune_measurements WHEN EXISTS (SELECT 1 FROM megatune_measurements WHERE id = NEW.id) BEGIN SELECT RAISE(ABORT, 'megatune_measurements: what was recorded is unique, and never replaced'); END;
CREATE TRIGGER tr_megatune_measurements_replace_0 BEFORE INSERT ON megatune_measurements WHEN NEW.stage = 'search' AND EXISTS (SELECT 1 FROM megatune_measurements WHERE stage = 'search' AND workload_id = NEW.workload_id AND target_id = NEW.target_id AND regime = NEW.regime AND provenance = NEW.provenance AND config_id = NEW.config_id AND revision = NEW.revision) BEGIN SELECT RAISE(IGNORE); END;
CREATE TRIGGER tr_megatune_measurements_replace_0_update BEFORE UPDATE OF workload_id, target_id, regime, provenance, config_id, revision, stage ON megatune_measurements WHEN NEW.stage = 'search' AND EXISTS (SELECT 1 FROM megatune_measurements WHERE stage = 'search' AND workload_id = NEW.workload_id AND target_id = NEW.target_id AND regime = NEW.regime AND provenance = NEW.provenance AND config_id = NEW.config_id AND revision = NEW.revision AND id <> NEW.id) BEGIN SELECT RAISE(ABORT, 'megatune_measurements: what was recorded is unique, and never replaced'); END;
CREATE TRIGGER tr_megatune_measurements_replace_1 BEFORE INSERT ON megatune_measurements WHEN NEW.stage = 'final' AND EXISTS (SELECT 1 FROM megatune_measurements WHERE stage = 'final' AND workload_id = NEW.workload_id AND target_id = NEW.target_id AND regime = NEW.regime AND provenance = NEW.provenance AND config_id = NEW.config_id AND session = NEW.session) BEGIN SELECT RAISE(IGNORE); END;
CREATE TRIGGER tr_megatune_measurements_replace_1_update BEFORE UPDATE OF workload_id, target_id, regime, provenance, config_id, session, stage ON megatune_measurements WHEN NEW.stage = 'final' AND EXISTS (SELECT 1 FROM megatune_measurements WHERE stage = 'final' AND workload_id = NEW.workload_id AND target_id = NEW.target_id AND regime = NEW.regime AND provenance = NEW.provenance AND config_id = NEW.config_id AND session = NEW.session AND id <> NEW.id) BEGIN SELECT RAISE(ABORT, 'megatune_measurements: what was recorded is unique, and never replaced'); END;
CREATE TRIGGER tr_megatune_plans_replace_id BEFORE INSERT ON megatune_plans WHEN EXISTS (SELECT 1 FROM megatune_plans WHERE id = NEW.id) BEGIN SELECT RAISE(ABORT, 'megatune_plans: what was recorded is unique, and never replaced'); END;
CREATE TRIGGER tr_megatune_plans_replace_0 BEFORE INSERT ON megatune_plans WHEN EXISTS (SELECT 1 FROM megatune_plans WHERE digest = NEW.digest) BEGIN SELECT RAISE(IGNORE); END;
CREATE TRIGGER tr_megatune_plans_replace_0_update BEFORE UPDATE OF digest ON megatune_plans WHEN EXISTS (SELECT 1 FROM megatune_plans WHERE digest = NEW.digest AND id <> NEW.id) BEGIN SELECT RAISE(ABORT, 'megatune_plans: what was recorded is unique, and never replaced'); END;
CREATE TRIGGER tr_megatune_plans_replace_1 BEFORE INSERT ON megatune_plans WHEN NEW.state = 'exported' AND EXISTS (SELECT 1 FROM megatune_plans WHERE state = 'exported' AND target_id = NEW.target_id AND model = NEW.model AND worlds = NEW.worlds) BEGIN SELECT RAISE(IGNORE); END;
CREATE TRIGGER tr_megatune_plans_replace_1_update BEFORE UPDATE OF target_id, model, worlds, state ON megatune_plans WHEN NEW.state = 'exported' AND EXISTS (SELECT 1 FROM megatune_plans WHERE state = 'exported' AND target_id = NEW.target_id AND model = NEW.model AND worlds = NEW.worlds AND id <> NEW.id) BEGIN SELECT RAISE(ABORT, 'megatune_plans: what was recorded is unique, and never replaced'); END;
CREATE TRIGGER tr_megatune_reviews_replace_id BEFORE INSERT ON megatune_reviews WHEN EXISTS (SELECT 1 FROM megatune_reviews WHERE id = NEW.id) BEGIN SELECT RAISE(ABORT, 'megatune_reviews: what was recorded is unique, and never replaced'); END;
CREATE TRIGGER tr_megatune_exports_replace_id BEFORE INSERT ON megatune_exports WHEN EXISTS (SELECT 1 FROM megatune_exports WHERE id = NEW.id) BEGIN SELECT RAISE(ABORT, 'megatune_exports: what was recorded is unique, and never replaced'); END;
CREATE TRIGGER tr_megatune_verifications_replace_id BEFORE INSERT ON megatune_verifications WHEN EXISTS (SELECT 1 FROM megatune_verifications WHERE id = NEW.id) BEGIN SELECT RAISE(ABORT, 'megatune_verifications: what was recorded is unique, and never replaced'); END;
CREATE TRIGGER tr_megatune_repeats_replace_id BEFORE INSERT ON megatune_repeats WHEN EXISTS (SELECT 1 FROM megatune_repeats WHERE id = NEW.id) BEGIN SELECT RAISE(ABORT, 'megatune_repeats: what was recorded is unique, and never replaced'); END;
CREATE TRIGGER tr_megatune_campaign_log_replace_id BEFORE INSERT ON megatune_campaign_log WHEN EXISTS (SELECT 1 FROM megatune_campaign_log WHERE id = NEW.id) BEGIN SELECT RAISE(ABORT, 'megatune_campaign_log: what was recorded is unique, and never replaced'); END;
COMMIT;
