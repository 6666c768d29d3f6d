-- The tables of the contract ("FunctionsServer", "Workspace", "Connection") and what Berth must remember itself.
-- Runs in one transaction with search_path set to the configured schema. Every instant is timestamptz.

-- Routes: where routers may send a workspace's events. Written by: activities of the transition, workspace and shard
-- workflows, each statement guarded. Read by every router; other programs rely on exactly these columns.
create table if not exists "FunctionsServer" (
  "workspaceId" text not null,
  "class" text not null,
  "deploymentId" text,
  "connections" text[],
  "emptyConnections" text[],
  "createdAt" timestamptz not null default now(),
  "updatedAt" timestamptz,
  "shutdownAt" timestamptz,
  "deleted" boolean default false,
  primary key ("workspaceId", "class")
);

-- Who still sends to a deployment is asked before every deletion.
create index if not exists berth_route_deployment on "FunctionsServer" ("deploymentId") where "deleted" is not true;

-- Tells subscribed routers which workspace changed. The channel holds the schema, so that two installations in one
-- database stay apart; as a name it is cut to 63 bytes, as the listener's is. Payloads end below 8,000 bytes; an empty
-- one means "anything may have changed".
create or replace function berth_notify_route() returns trigger language plpgsql as $$
declare
  channel text := ('berth_routes_' || tg_table_schema)::name::text;
  id text;
begin
  foreach id in array case tg_op
    when 'TRUNCATE' then array['']
    when 'INSERT' then array[new."workspaceId"]
    when 'DELETE' then array[old."workspaceId"]
    else array[old."workspaceId", new."workspaceId"]
  end
  loop
    perform pg_notify(channel, case when octet_length(id) < 7000 then id else '' end);
  end loop;
  return null;
end
$$;

create or replace trigger berth_notify_route
  after insert or update or delete on "FunctionsServer"
  for each row execute function berth_notify_route();

create or replace trigger berth_notify_all
  after truncate on "FunctionsServer"
  for each statement execute function berth_notify_route();

-- The wishes. Written by: the operator's own programs, or Berth's client and command line when these are tables.
-- When a view of this name exists already it is kept, and Berth never writes it.
create table if not exists "Workspace" (
  "workspaceId" text primary key,
  "paymentStatus" text,
  "forcedClass" text,
  "updatedAt" timestamptz not null default now(),
  "deleted" boolean not null default false
);

create table if not exists "Connection" (
  "connectionId" text primary key,
  "workspaceId" text not null,
  "functions" jsonb not null default '[]',
  "updatedAt" timestamptz not null default now(),
  "deleted" boolean not null default false
);

do $$
begin
  if exists (
    select from pg_class c join pg_namespace n on n.oid = c.relnamespace
    where n.nspname = current_schema() and c.relname = 'Connection' and c.relkind in ('r', 'p')
  ) then
    create index if not exists berth_connection_workspace on "Connection" ("workspaceId");
  end if;
end
$$;

-- Shards. Written by: the shard workflow's activities (rollouts), and the join of a workspace when a new one is opened.
-- rolling means rollout_seq > finished_seq.
create table berth_shard (
  shard_id text primary key,
  shard_index integer not null unique check (shard_index >= 0),
  rollout_seq bigint not null default 0,
  finished_seq bigint not null default 0,
  config_digest text,
  started_at timestamptz,
  finished_at timestamptz,
  check (finished_seq <= rollout_seq)
);

-- Sides: which deployment serves, or is about to serve, which workspace. Written by: join and leave (workspace and
-- transition workflows), render and finish (the workflow that rolls the deployment out). The row outlives the objects.
create table berth_side (
  workspace_id text not null,
  deployment_id text not null,
  kind text not null check (kind in ('own', 'shard')),
  class text not null,
  state text not null check (state in ('joining', 'serving', 'leaving', 'left')),
  -- A route has named this side at some time: only then does anybody have to be waited for before it lets go.
  routed boolean not null default false,
  -- The shard's rollout may record the free route in bulk.
  wants_route boolean not null default false,
  -- What the newest rollout of the deployment contains for this workspace; seq is the shard's rollout, template the
  -- digest of the deployment's whole config.
  rendered_seq bigint,
  rendered_template text,
  rendered_digest text,
  rendered_connections text[],
  rendered_empty text[],
  rendered_bytes integer,
  -- What the last full rollout contains.
  served_digest text,
  served_connections text[],
  served_empty text[],
  created_at timestamptz not null default now(),
  updated_at timestamptz not null default now(),
  primary key (workspace_id, deployment_id)
);
create index berth_side_deployment on berth_side (deployment_id, state);

-- The timeline of every transition. Written by: the activities, in the transaction of the step itself. Append only.
create table berth_event (
  event_id bigint generated always as identity primary key,
  workspace_id text not null,
  transition text not null,
  phase text not null,
  what text not null,
  detail jsonb not null default '{}',
  at timestamptz not null default clock_timestamp()
);
create index berth_event_workspace on berth_event (workspace_id, event_id);
