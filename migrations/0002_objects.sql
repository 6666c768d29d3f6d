-- What Berth remembers of the objects behind a side, so that a late attempt can be told from the newest one, and objects
-- that were deleted, edited by hand, or made from an older template can be told from those that are as they should be.
-- Runs in one transaction with search_path set to the configured schema.

-- Own sides: berth_side.rendered_seq counts the renders of an own deployment, as it holds the rollout of a shard's member.
update berth_side set rendered_seq = 0 where kind = 'own' and rendered_seq is null;

-- Written by: the activity that applies (object_uid, applied_spec), the fleet and the watch of objects (drifted_at,
-- drift), and the next render, which clears both.
alter table berth_side
  -- UID of the Deployment that the newest apply stored; null before the first.
  add column if not exists object_uid text,
  -- Digest of everything of that apply but its config: image, resources, class template.
  add column if not exists applied_spec text,
  -- When the objects were seen to differ from what was applied, and how; null: they were not.
  add column if not exists drifted_at timestamptz,
  add column if not exists drift text;

alter table berth_shard
  add column if not exists object_uid text,
  add column if not exists applied_spec text,
  add column if not exists drifted_at timestamptz,
  add column if not exists drift text;
