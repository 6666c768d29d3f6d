/**
 * The one way a run is tried again: the statement that ends a row inserts the next attempt in the same breath, so that
 * neither a crash between the two nor a second reaper can lose or double it.
 */
import { type RawBuilder, sql } from 'kysely';

/**
 * SQL for `insert ... on conflict do nothing returning id, retry_of, available_at` from `source`, a relation of ended
 * `runs` rows with two more columns: `again` (boolean) and `delay_ms`. The next attempt keeps priority, payload and key.
 * Race: a conflict means that the successor exists, or that another live run has the key; either way nothing is lost,
 * and no other row of the statement fails for it.
 */
export function insertNextAttempt(
  runs: RawBuilder<unknown>,
  source: RawBuilder<unknown>,
): RawBuilder<unknown> {
  return sql`
    insert into ${runs} (lane, priority, attempt, max_attempts, available_at, expires_at, deadline_ms, dedupe_key,
      payload, approval, reap_count, root_id, retry_of)
    select e.lane, e.priority, e.attempt + 1, e.max_attempts, now() + make_interval(secs => e.delay_ms / 1000),
      e.expires_at, e.deadline_ms, e.dedupe_key, e.payload, e.approval, e.reap_count, coalesce(e.root_id, e.id), e.id
    from ${source} e where e.again
    on conflict do nothing
    returning id, retry_of, available_at`;
}

/**
 * SQL for a retry's delay: the lane's for this attempt (`delays`, a float8[] by attempt), shortened by chance up to
 * `jitter` of it.
 */
export function jitteredDelay(
  delays: RawBuilder<unknown>,
  attempt: RawBuilder<unknown>,
  jitter: RawBuilder<unknown>,
): RawBuilder<unknown> {
  return sql`(${delays})[least(${attempt}, array_length(${delays}, 1))] * (1 - ${jitter} * random())`;
}
