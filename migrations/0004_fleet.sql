-- What the fleet's passes remember of each other. Runs in one transaction with search_path set to the configured schema.

-- Written by: markDrift (the fleet, the watch of objects), and the next full rollout, which clears it.
alter table berth_side
  -- When the servers behind an own side were seen to be gone; until a full rollout is proven again, nothing else of the
  -- workspace is retired.
  add column if not exists lost_at timestamptz;

-- How many wishes the last plausible pass counted, and the alarm of the newest one. One row. Written by: the fleet.
create table berth_fleet (
  id boolean primary key default true check (id),
  workspaces integer not null,
  connections integer not null,
  taken_at timestamptz not null,
  alarm text,
  alarm_at timestamptz
);

-- Deployments whose objects exist and that no row names, since when. Written by: the fleet.
create table berth_orphan (
  deployment_id text primary key,
  first_seen_at timestamptz not null default now()
);
