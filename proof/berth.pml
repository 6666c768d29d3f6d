/*
 * The move protocol of one workspace, small enough to search every order of events. docs/proof.md says which step
 * stands for which function, what is left out, and why that is sound.
 *
 * Safety (default): the workflows are replaced by chaos, which runs any step at any time, as often as it likes. A step
 * is held back only by the conditions that its own transaction repeats. So crashes, retries, lost and doubled messages,
 * cancellations and any number of changes of the wish are all among the orders that are searched.
 * Liveness (-DLIVE): the workflows as they are planned, cancelled, undone and planned again, under weak fairness.
 *
 * Time is counted in ticks. Ages and notices are kept relative to now and stop at a bound, so the states are finite.
 */

/* ---- Timing (src/plan/timing.ts), as tight as its inequalities allow ---- */
#ifndef MAX_AGE
#define MAX_AGE 1 /* maxSnapshotAge */
#endif
#define SKEW 1    /* clockSkew */
#define LONGEST 1 /* longestRequest */
#define SETTLE (LONGEST + SKEW)
#define S (MAX_AGE + SETTLE)
#ifdef SHORT_HANDOFF /* broken: handoff delay shorter than S */
#define HANDOFF (S - 1)
#else
#define HANDOFF S
#endif
#define DRAIN S
#ifdef NO_SETTLE /* broken: a server lets go at shutdownAt */
#define LET_GO_AFTER 0
#else
#define LET_GO_AFTER SETTLE
#endif
#ifdef SLOW_COMMIT /* beyond what is assumed: a step commits a tick after the instant that it writes down */
#define COMMIT 1
#else
#define COMMIT 0
#endif
/* A router acts on what was replaced for less than S: this long on its table, and LONGEST on the request. */
#define HOLD (MAX_AGE + SKEW + COMMIT - 1)

/* ---- Words ---- */
#define FREE 0
#define DEDICATED 1
#define PREMIUM 2
#define GONE 3 /* a wish only: the workspace is deleted */
#ifdef TWO_CLASSES
#define CLASSES 2
#define PREMIUM_TOO(x)
#define other(c) FREE
#else
#define CLASSES 3
#define PREMIUM_TOO(x) x
#define other(c) (DEDICATED + PREMIUM - c) /* the other own class */
#endif

#define NONE 0
#define JOINING 1
#define SERVING 2
#define LEAVING 3
#define LEFT 4

/* ---- What is wished ---- */
byte wish = FREE;
bit functions = 1; /* some connection has functions, so a server is needed */

/* ---- "FunctionsServer", by class ---- */
bit live[CLASSES];         /* exists and is not deleted */
bit nowhere[CLASSES] = 1;  /* deploymentId is null, or the row was never written */
byte age[CLASSES];         /* now - createdAt, up to HANDOFF + 1; 0 where nothing reads it */
byte notice[CLASSES];      /* 0: shutdownAt is null; else shutdownAt - now + SETTLE + 1, down to 1 */
byte quiet;                /* since a removal marked all rows deleted, up to HANDOFF + 1 */
#ifdef KEEP_CREATED_AT
bit known[CLASSES];        /* was written at some time */
#endif

/* ---- "berth_side" and "berth_shard" ---- */
byte own = NONE;    /* the workspace's own deployment */
bit ownRouted;
byte member = NONE; /* its membership in the shard */
bit memberRouted, memberWants, memberServed;
bit memberRendered; /* the rollout under way includes it: rendered_seq = rollout_seq */
bit rolling;        /* rollout_seq > finished_seq */

/* ---- What runs ---- */
bit ownServes;   /* the own deployment is rolled out in full */
bit shardServes; /* every pod of the shard has the workspace's functions */

/* ---- One router with one snapshot, which decides once; then another. It stands for all. ---- */
byte router;
#define LOOKS 0
#define HOLDS 1 /* a snapshot */
#define SENT 2  /* a request */
byte held;      /* for how long */
bit sawLive[CLASSES];
bit sawNowhere[CLASSES];
byte sawNotice[CLASSES];
bit toShard;    /* where the request went */
byte c, rank, best, chosen; /* scratch: 0 between steps */

/*
 * With LATE: attempts that were given up, and retried by others, are stalled between their look and their act, and go on
 * later. A deletion and the record of a rollout are bound to the object that was looked at, an apply to its number: once
 * that object is gone, or a newer apply is stored, they can do nothing any more.
 */
#ifdef LATE
bit lateDelete, lateMark, lateApply;
#endif
#ifdef LIVE
bit late; /* an apply for an edit is under way */
#endif

/* The property: from the decision to the answer, the server that was chosen has the workspace's functions. */
#define SERVES_UNTIL_ANSWERED(shard) assert(!(router == SENT && toShard == shard))

#define SAY(what) printf(what)
#define WANTS_OWN (functions && (wish == DEDICATED || wish == PREMIUM))
#define WANTS_FREE (functions && wish == FREE)
#define isActive(side) (side == JOINING || side == SERVING)
#define routable(c) (live[c] && notice[c] == 0)
#define settled(c) (notice[c] != 0 && notice[c] <= SETTLE + 1 - LET_GO_AFTER)
#define names(c) (live[c] && !nowhere[c])
#ifdef TWO_CLASSES
#define ownNamed (!nowhere[DEDICATED])
#define namesOwn names(DEDICATED)
#define ownLive live[DEDICATED]
#define ownRoutable routable(DEDICATED)
#else
#define ownNamed (!nowhere[DEDICATED] || !nowhere[PREMIUM])
#define namesOwn (names(DEDICATED) || names(PREMIUM))
#define ownLive (live[DEDICATED] || live[PREMIUM])
#define ownRoutable (routable(DEDICATED) || routable(PREMIUM))
#endif
#define anyLive (live[FREE] || ownLive)

/* ---- src/database/liveRoute.ts ---- */

/* createdAt moves unless the route was continuously routable to the same deployment. */
inline makeLive(c, toNowhere) {
  if
  :: routable(c) && nowhere[c] == toNowhere
  :: else ->
#ifdef KEEP_CREATED_AT /* broken: createdAt is not renewed when a deleted row is revived */
    if
    :: live[c] || !known[c] -> age[c] = 0
    :: else
    fi;
    known[c] = 1;
#else
    age[c] = 0;
#endif
    live[c] = 1; notice[c] = 0; nowhere[c] = toNowhere
  fi
}

/* An earlier instant stays. */
inline giveNotice(c, ticks) {
  if
  :: live[c] && (notice[c] == 0 || notice[c] > ticks + SETTLE + 1) -> notice[c] = ticks + SETTLE + 1; forgetAge(c)
  :: else
  fi
}

inline markDeleted(c) { live[c] = 0; notice[c] = 0; forgetAge(c) }

/* What is not read is not kept: each of its values would be a state of its own. */
inline forgetAge(c) {
#ifndef KEEP_CREATED_AT
  age[c] = 0
#else
  skip
#endif
}

/* ---- src/database/routes.ts ---- */
#define mayHandOff (WANTS_OWN && own == SERVING)
inline handOff() {
  SAY("handOff: the own route goes live, others get notice\n");
  makeLive(wish, 0);
  ownRouted = 1;
  PREMIUM_TOO(if :: names(other(wish)) -> markDeleted(other(wish)) :: else -> giveNotice(other(wish), HANDOFF - SETTLE) fi;)
  giveNotice(FREE, HANDOFF - SETTLE)
}

#define freeOnNotice (live[FREE] && notice[FREE] != 0)
#define mayScheduleShutdown (WANTS_FREE && ownRoutable && !freeOnNotice)
inline scheduleShutdown() {
  SAY("scheduleShutdown: the own route gets notice\n");
  giveNotice(DEDICATED, DRAIN);
  PREMIUM_TOO(giveNotice(PREMIUM, DRAIN))
}

#define noticed(c) (live[c] && notice[c] != 0)
#ifdef TWO_CLASSES
#define mayPutOff (WANTS_FREE && freeOnNotice && noticed(DEDICATED))
#else
#define mayPutOff (WANTS_FREE && freeOnNotice && (noticed(DEDICATED) || noticed(PREMIUM)))
#endif
inline takeNoticeBack() {
  for (c : DEDICATED .. CLASSES - 1) {
    if
    :: noticed(c) -> notice[c] = 0; age[c] = 0
    :: else
    fi
  }
  c = 0
}
inline putOff() {
  SAY("scheduleShutdown: put off, since the free route is on notice\n");
  takeNoticeBack()
}

#define mayRecordFree (WANTS_FREE && member == SERVING && memberServed)
inline recordFree() { makeLive(FREE, 0); memberRouted = 1; memberWants = 0 }
inline recordFreeRoute() { SAY("recordFreeRoute\n"); recordFree() }

#define mayRecordEmpty (!functions && wish != GONE)
inline recordEmptyRoute() {
  SAY("recordEmptyRoute: the route names no server, others get notice\n");
  makeLive(wish, 1);
  for (c : 0 .. CLASSES - 1) {
    if
    :: c != wish -> giveNotice(c, HANDOFF - SETTLE)
    :: else
    fi
  }
  c = 0
}

/* ---- src/database/retirement.ts and src/plan/retire.ts ---- */
#ifdef NO_FREE_AGE /* broken: a downgrade does not wait for the age of the free route */
#define oldEnough (wish == FREE || age[wish] > HANDOFF)
#else
#define oldEnough (age[wish] > HANDOFF)
#endif
#define sameServer(c) (nowhere[c] == nowhere[wish] && (nowhere[c] || (c != FREE && wish != FREE)))
#define keeps (wish != GONE && routable(wish) && (nowhere[wish] || (wish == FREE && member == SERVING && memberServed) || (wish != FREE && own == SERVING)))
#define keptSide(isOwn) (!nowhere[wish] && isOwn == (wish != FREE))
#define leavesOwn (isActive(own) && !keptSide(1))
#define leavesShard (isActive(member) && !keptSide(0))
#define otherLive(c) (wish != c && live[c])
#define mayGo(c) (wish == c || !live[c] || sameServer(c) || settled(c))
#define unnoticed(c) (wish != c && routable(c) && !sameServer(c))
#ifdef TWO_CLASSES
#define othersLive (otherLive(FREE) || otherLive(DEDICATED))
#define othersMayGo (mayGo(FREE) && mayGo(DEDICATED))
#define othersUnnoticed (unnoticed(FREE) || unnoticed(DEDICATED))
#else
#define othersLive (otherLive(FREE) || otherLive(DEDICATED) || otherLive(PREMIUM))
#define othersMayGo (mayGo(FREE) && mayGo(DEDICATED) && mayGo(PREMIUM))
#define othersUnnoticed (unnoticed(FREE) || unnoticed(DEDICATED) || unnoticed(PREMIUM))
#endif
#define hasOthers (othersLive || leavesOwn || leavesShard)
#define shardRolls (rolling && wish == FREE && !nowhere[FREE])
#define mayRetire (keeps && hasOthers && oldEnough && othersMayGo && !shardRolls)
inline retireOthers() {
  SAY("retireOthers: other routes are deleted, other sides are asked to leave\n");
  if
  :: leavesOwn -> own = LEAVING
  :: else
  fi;
  if
  :: leavesShard -> member = LEAVING; memberWants = 0
  :: else
  fi;
  for (c : 0 .. CLASSES - 1) {
    if
    :: c != wish -> markDeleted(c)
    :: else
    fi
  }
  c = 0
}

#define mayNoticeOthers (keeps && othersUnnoticed)
inline noticeOthers() {
  SAY("retireOthers: a route without notice gets it\n");
  for (c : 0 .. CLASSES - 1) {
    if
    :: unnoticed(c) && c == FREE -> giveNotice(c, HANDOFF - SETTLE)
    :: unnoticed(c) && c != FREE -> giveNotice(c, DRAIN)
    :: else
    fi
  }
  c = 0
}

#define mayUndoUpgrade (isActive(own) && !ownRouted && !WANTS_OWN && !namesOwn)
inline undoUpgrade() { SAY("undoUpgrade: the own side, never routed, is asked to leave\n"); own = LEAVING }

#define mayUndoDowngrade (WANTS_OWN && !routable(FREE))
inline undoDowngrade() {
  SAY("undoDowngrade: the notice is taken back\n");
  takeNoticeBack();
  memberWants = 0;
  if
  :: isActive(member) && !memberRouted && !names(FREE) -> member = LEAVING
  :: else
  fi
}

/* ---- src/database/removal.ts ---- */
#define goneOrSettled(c) (!live[c] || settled(c))
#ifdef TWO_CLASSES
#define allSettled (goneOrSettled(FREE) && goneOrSettled(DEDICATED))
#else
#define allSettled (goneOrSettled(FREE) && goneOrSettled(DEDICATED) && goneOrSettled(PREMIUM))
#endif
#define mayNoticeAll (wish == GONE && (routable(FREE) || ownRoutable))
inline noticeAll() {
  SAY("advanceRemoval: all routes get notice\n");
  for (c : 0 .. CLASSES - 1) {
    if
    :: routable(c) -> giveNotice(c, DRAIN)
    :: else
    fi
  }
  c = 0
}
#define mayDeleteAll (wish == GONE && anyLive && allSettled)
inline deleteAll() {
  SAY("advanceRemoval: all routes are deleted\n");
  for (c : 0 .. CLASSES - 1) { markDeleted(c) }
  c = 0;
  quiet = 0
}
#define someRouted ((own != NONE && ownRouted) || (member != NONE && memberRouted))
#define mayRelease (wish == GONE && !anyLive && (isActive(own) || isActive(member)) && (quiet > HANDOFF || !someRouted))
inline release() {
  SAY("advanceRemoval: all sides are asked to leave\n");
  if
  :: isActive(own) -> own = LEAVING
  :: else
  fi;
  if
  :: isActive(member) -> member = LEAVING; memberWants = 0
  :: else
  fi
}

/* ---- src/database/joins.ts ---- */
#define mayJoin (WANTS_FREE && (member == NONE || member == LEAVING || member == LEFT || !memberWants))
inline joinShard(routed) {
  SAY("joinShard\n");
  if
  :: member == NONE -> member = JOINING; memberRouted = routed
  :: member != NONE && memberServed -> member = SERVING
  :: else -> member = JOINING
  fi;
  memberWants = 1
}

/* ---- src/database/shards.ts, with the apply between its two writes ---- */
inline renderShard() {
  SAY("renderShard, apply: a rollout of the shard begins\n");
#if defined(LATE) && !defined(NO_FENCE) /* broken: an apply does not look which one came last */
  lateApply = 0;
#endif
  rolling = 1;
  memberRendered = isActive(member);
  if
  :: member == LEAVING -> member = LEFT; memberServed = 0
  :: else
  fi;
  /* The first new pod of a rollout without it lacks its functions. */
  if
  :: !memberRendered && shardServes ->
    SAY("                    the shard stops serving the workspace\n");
    SERVES_UNTIL_ANSWERED(1);
    shardServes = 0
  :: else
  fi
}

inline finishShard() {
  SAY("finishShard: the rollout is proven in full\n");
  rolling = 0;
  if
  :: memberRendered -> shardServes = 1
  :: else
  fi;
  if
  :: isActive(member) && memberRendered ->
    member = SERVING; memberServed = 1;
    if
    :: memberWants && WANTS_FREE -> SAY("finishShard: the free route is recorded in bulk\n"); recordFree()
    :: else -> memberWants = 0
    fi
  :: member == LEFT -> member = NONE; memberRouted = 0; memberWants = 0
  :: else
  fi;
  memberRendered = 0
}

/* ---- src/database/sides.ts and the own half of src/activities/rollouts.ts ---- */
#define mayPrepareOwn (own == NONE && WANTS_OWN)
inline prepareOwn() { SAY("prepareOwnSide: the own side is joining\n"); own = JOINING; ownRouted = ownNamed }
#define mayMarkServed (own == JOINING && ownServes)
inline markServed() { SAY("markOwnServed: the own deployment is rolled out in full\n"); own = SERVING }
#define mayDelete (own == LEAVING && !namesOwn)
inline removeOwn() {
  SAY("deleteOwn: the own deployment stops serving\n");
  SERVES_UNTIL_ANSWERED(0);
#if defined(LATE) && !defined(DELETE_BY_NAME) /* broken: a deletion takes whatever has the name by then */
  lateDelete = 0;
#endif
#if defined(LATE) && !defined(MARK_BY_NAME) /* broken: a rollout counts for whatever has the name by then */
  lateMark = 0;
#endif
  ownServes = 0
}
inline forgetOwn() { SAY("forgetOwnSide\n"); own = NONE; ownRouted = 0 }

/* ---- src/routing/decide.ts ---- */

/* `clock`: how far the router's clock is ahead of the database's, plus SKEW. */
#define expired(c, clock) (sawNotice[c] != 0 && sawNotice[c] + SKEW <= SETTLE + 1 + clock)
#define NOBODY 99
inline decide(expected, clock) {
  best = NOBODY;
  for (c : 0 .. CLASSES - 1) {
    rank = (c <= expected -> expected - c : c) + (expired(c, clock) -> 2 * CLASSES : 0);
    if
    :: sawLive[c] && rank < best -> best = rank; chosen = c
    :: else
    fi
  }
  if
  :: best == NOBODY || sawNowhere[chosen] -> router = LOOKS /* retry or pass: not lost */
  :: else ->
    router = SENT;
    toShard = (chosen == FREE);
    if
    :: toShard -> SAY("router: sends an event to the shard, by a table of some age\n"); assert(shardServes)
    :: else -> SAY("router: sends an event to the own deployment, by a table of some age\n"); assert(ownServes)
    fi
  fi;
  forgetSnapshot()
}

#ifdef TWO_CLASSES
#define onlyOneLive (live[FREE] + live[DEDICATED] == 1)
#else
#define onlyOneLive (live[FREE] + live[DEDICATED] + live[PREMIUM] == 1)
#endif
inline look() {
  SAY("router: reads the rows\n");
  router = HOLDS;
  for (c : 0 .. CLASSES - 1) {
    sawLive[c] = live[c];
    sawNowhere[c] = live[c] && nowhere[c];
    /* Where one row is all there is, no notice is looked at; nor does one matter that ends after the snapshot. */
    if
    :: !onlyOneLive && notice[c] <= SETTLE + 1 + SKEW + HOLD -> sawNotice[c] = notice[c]
    :: else
    fi
  }
  c = 0
}

inline forgetSnapshot() {
  for (c : 0 .. CLASSES - 1) { sawLive[c] = 0; sawNowhere[c] = 0; sawNotice[c] = 0 }
  c = 0; rank = 0; best = 0; chosen = 0; held = 0
}

/* ---- Time ---- */
inline tick() {
  /* Every state can tick, so these hold in every state: what a live row names neither leaves nor is forgotten. */
  assert(!namesOwn || own == SERVING);
  assert(!names(FREE) || member == SERVING);
  SAY("-- a tick --\n");
  for (c : 0 .. CLASSES - 1) {
    if
    :: notice[c] > 1 -> notice[c]--
    :: else
    fi;
    if
#ifdef KEEP_CREATED_AT
    :: known[c] && age[c] <= HANDOFF -> age[c]++
#else
    :: routable(c) && age[c] <= HANDOFF -> age[c]++
#endif
    :: else
    fi;
    if
    :: sawNotice[c] > 1 -> sawNotice[c]--
    :: else
    fi
  }
  c = 0;
  if
  :: !anyLive && quiet <= HANDOFF -> quiet++
  :: else
  fi;
  if
  :: router == HOLDS && held == HOLD -> forgetSnapshot(); router = LOOKS /* too old to decide from */
  :: router == SENT && held == LONGEST -> held = 0; toShard = 0; router = LOOKS /* answered */
  :: router == HOLDS && held < HOLD -> held++
  :: router == SENT && held < LONGEST -> held++
  :: router == LOOKS
  fi
}

active proctype Clock() {
  do
  :: d_step { true -> tick() }
  od
}

#ifndef LIVE
/* ==== Safety: any step, at any time ==== */

active proctype Router() {
  do
  :: d_step { router == LOOKS && (names(FREE) || namesOwn) -> look() }
  :: d_step { router == HOLDS -> decide(FREE, 0) }
  :: d_step { router == HOLDS -> decide(FREE, SKEW) }
  :: d_step { router == HOLDS -> decide(FREE, 2 * SKEW) }
  :: d_step { router == HOLDS -> decide(DEDICATED, 0) }
  :: d_step { router == HOLDS -> decide(DEDICATED, SKEW) }
  :: d_step { router == HOLDS -> decide(DEDICATED, 2 * SKEW) }
#ifndef TWO_CLASSES
  :: d_step { router == HOLDS -> decide(PREMIUM, 0) }
  :: d_step { router == HOLDS -> decide(PREMIUM, SKEW) }
  :: d_step { router == HOLDS -> decide(PREMIUM, 2 * SKEW) }
#endif
  od
}

active proctype Wish() {
  do
  :: d_step { wish != FREE -> SAY("wish: free\n"); wish = FREE }
  :: d_step { wish != DEDICATED -> SAY("wish: dedicated\n"); wish = DEDICATED }
#ifndef TWO_CLASSES
  :: d_step { wish != PREMIUM -> SAY("wish: premium\n"); wish = PREMIUM }
#endif
#ifndef NEVER_GONE
  :: d_step { wish != GONE -> SAY("wish: the workspace is deleted\n"); wish = GONE; functions = 1 }
#endif
#ifndef ALWAYS_FUNCTIONS
  :: d_step { functions && wish != GONE -> SAY("wish: no functions\n"); functions = 0 }
  :: d_step { !functions -> SAY("wish: functions\n"); functions = 1 }
#endif
  od
}

active proctype Workspace() {
  do
  :: d_step { mayHandOff -> handOff() }
  :: d_step { mayScheduleShutdown -> scheduleShutdown() }
  :: d_step { mayPutOff -> putOff() }
  :: d_step { mayJoin -> joinShard(!nowhere[FREE]) }
  :: d_step { mayJoin && member == NONE -> joinShard(0) } /* another shard than before */
  :: d_step { mayRecordFree -> recordFreeRoute() }
#ifndef ALWAYS_FUNCTIONS
  :: d_step { mayRecordEmpty -> recordEmptyRoute() }
#endif
  :: d_step { mayNoticeOthers -> noticeOthers() }
  :: d_step { mayRetire -> retireOthers() }
  :: d_step { mayUndoUpgrade -> undoUpgrade() }
  :: d_step { mayUndoDowngrade -> undoDowngrade() }
#ifndef NEVER_GONE
  :: d_step { mayNoticeAll -> noticeAll() }
  :: d_step { mayDeleteAll -> deleteAll() }
  :: d_step { mayRelease -> release() }
#endif
  :: d_step { mayPrepareOwn -> prepareOwn() }
  :: d_step { mayMarkServed -> markServed() }
  :: d_step { mayDelete && ownServes -> removeOwn() }
  :: d_step { mayDelete && !ownServes -> forgetOwn() }
#ifdef LATE
  :: d_step { mayDelete && ownServes && !lateDelete -> SAY("deleteOwn: an attempt is stalled after mayDelete\n"); lateDelete = 1 }
  :: d_step { lateDelete && ownServes -> SAY("deleteOwn: the stalled attempt goes on\n"); lateDelete = 0; removeOwn() }
  :: d_step { mayMarkServed && !lateMark -> SAY("awaitOwnRollout: an attempt is stalled after it saw the rollout\n"); lateMark = 1 }
  :: d_step { lateMark && own == JOINING -> SAY("awaitOwnRollout: the stalled attempt goes on\n"); lateMark = 0; markServed() }
#endif
  od
}

active proctype Shard() {
  do
  :: d_step { true -> renderShard() } /* other members are due at any time; a retry renders again */
  :: d_step { rolling -> finishShard() }
#ifdef LATE
  /* What it goes on to apply lacks the member: only then may it do harm. It is rendered, and not applied yet. */
  :: d_step { !lateApply && !isActive(member) -> SAY("rollShard: an attempt is stalled before its apply\n"); renderShard(); lateApply = 1 }
  :: d_step {
       lateApply -> SAY("rollShard: the stalled attempt applies its old config\n");
       lateApply = 0;
       assert(!shardServes || !(router == SENT && toShard));
       shardServes = 0
     }
#endif
  od
}

active proctype Cluster() {
  do
  /* Applied and rolled out, after any time. Objects that nobody asked for do no harm. */
  :: d_step { !ownServes -> SAY("cluster: the own deployment is up\n"); ownServes = 1 }
  od
}
#endif

#ifdef LIVE
/* ==== Liveness: the workflows as planned ==== */

bit stopped;    /* the wish, the edits and the crashes have ended */
bit ownObjects; /* objects of the own deployment exist */
byte ownClass;  /* class whose resources were applied last */
bit fresh;      /* keepingFresh runs beside the move; `late`: its applyOwn has rendered and not yet applied */
byte flips;

/* ---- src/plan/transition.ts ---- */
mtype = { settled_, finish, remove, discard, place, unserve, upgrade, downgrade, swap, refresh };
mtype move;
byte aim;
bit aimFunctions;

#define rests (routable(wish) && nowhere[wish] && !othersLive)
#define planEmpty (!anyLive && own == NONE && !isActive(member) -> place : (!rests || own != NONE || isActive(member) -> unserve : settled_))
#ifdef TWO_CLASSES
#define elsewhere(c) live[FREE]
#else
#define elsewhere(c) (live[FREE] || (live[other(c)] && nowhere[other(c)]))
#endif
#define planOwn (!anyLive && !isActive(member) -> place : (isActive(member) || elsewhere(wish) -> upgrade : \
  (othersLive -> swap : (!routable(wish) || nowhere[wish] -> place : (own == SERVING && ownClass == wish -> settled_ : refresh)))))
#define planFree (othersLive || own != NONE -> downgrade : \
  (!routable(FREE) || nowhere[FREE] || !isActive(member) -> place : (member == SERVING -> settled_ : refresh)))
#define planMove (own == LEAVING -> finish : \
  (wish == GONE -> (anyLive || isActive(own) || isActive(member) -> remove : settled_) : \
  (own != NONE && !ownRouted && !WANTS_OWN -> discard : \
  (!functions -> planEmpty : (wish == FREE -> planFree : planOwn)))))
#define aimChanged (wish != aim || functions != aimFunctions)

/* What every wish must end in: one live route of the wanted class, one side, one set of objects. */
#define noOwn (own == NONE && !ownObjects && !late)
#define converged ( \
  (wish == GONE && !anyLive && noOwn && !isActive(member)) || \
  (wish != GONE && routable(wish) && !othersLive && ( \
    (!functions && nowhere[wish] && noOwn && !isActive(member)) || \
    (WANTS_FREE && !nowhere[wish] && noOwn && member == SERVING && shardServes) || \
    (WANTS_OWN && !nowhere[wish] && own == SERVING && ownServes && ownClass == wish && !isActive(member)))))

ltl converges { (<> stopped) -> (<> [] converged) }

active proctype Wish() {
  do
  :: d_step { flips < FLIPS -> flips++; SAY("wish: free\n"); wish = FREE }
  :: d_step { flips < FLIPS -> flips++; SAY("wish: dedicated\n"); wish = DEDICATED }
#ifndef TWO_CLASSES
  :: d_step { flips < FLIPS -> flips++; SAY("wish: premium\n"); wish = PREMIUM }
#endif
  :: d_step { flips < FLIPS -> flips++; SAY("wish: the workspace is deleted\n"); wish = GONE }
#ifndef ALWAYS_FUNCTIONS
  :: d_step { flips < FLIPS -> flips++; SAY("wish: functions come or go\n"); functions = 1 - functions }
#endif
  :: d_step { SAY("-- the wish changes no more, nothing crashes any more --\n"); stopped = 1 }; break
  od
}

/* src/workflows/{workspace,upgrade,downgrade,moves}.ts. A crash loses the run, which is planned again from the rows. */
#define CANCELLED aimChanged -> goto undo
#define CRASHED !stopped -> goto plan
active proctype Workspace() {
plan:
  skip;
  d_step { fresh = 0; move = planMove; aim = wish; aimFunctions = functions };
  if
  :: move == settled_ -> planMove != settled_; goto plan
  :: move == finish -> goto delete
  :: move == discard -> goto undo
  :: move == remove -> goto removal
#ifndef ALWAYS_FUNCTIONS
  :: (move == unserve || move == place) && !aimFunctions -> goto routeToNowhere
#endif
  :: move == downgrade -> d_step { if :: mayScheduleShutdown -> scheduleShutdown() :: mayPutOff -> putOff() :: else fi; fresh = 1 }; goto join
  :: (move == place || move == refresh) && aimFunctions && aim == FREE -> goto join
  :: else -> goto rollOut
  fi;

rollOut: /* rollOutOwn: prepareOwnSide, recordRendered, apply, awaitOwnRollout, markOwnServed */
  do
  :: CANCELLED
  :: CRASHED
  :: own == LEAVING || (own == NONE && !WANTS_OWN) -> goto undo
  :: d_step { mayPrepareOwn && !aimChanged -> prepareOwn() }
  :: d_step { isActive(own) && (!ownObjects || ownClass != aim) -> ownObjects = 1; ownClass = aim }
  :: d_step { isActive(own) && ownObjects && ownClass == aim && ownServes -> own = SERVING }; break
  od;
  if
  :: move == refresh -> goto plan
  :: move != refresh
  :: CRASHED
  fi;
  if
  :: d_step { mayHandOff && wish == aim -> handOff() }
  :: !(mayHandOff && wish == aim) -> goto undo
  fi;
  if
  :: move == upgrade -> fresh = 1; goto retire
  :: else -> goto plan
  fi;

join: /* joinAndRecord: once, then again only where the shard does not serve it */
  skip;
  d_step { if :: mayJoin -> joinShard(!nowhere[FREE]) :: else fi };
  do
  :: CANCELLED
  :: CRASHED
  :: !WANTS_FREE -> goto undo
  :: d_step { mayJoin && !mayRecordFree -> joinShard(!nowhere[FREE]) }
  :: d_step { mayRecordFree -> recordFreeRoute() }; break
  od;
  if
  :: move == downgrade -> goto retire
  :: else -> goto plan
  fi;

#ifndef ALWAYS_FUNCTIONS
routeToNowhere: /* recordEmptyRoute */
  if
  :: CANCELLED
  :: d_step { mayRecordEmpty && !aimChanged -> recordEmptyRoute() }
  fi;
  if
  :: move == unserve -> goto retire
  :: else -> goto plan
  fi;
#endif

retire: /* retire, with the notice given again before it asks again */
  do
  :: CANCELLED
  :: CRASHED
  :: !keeps -> goto undo
  :: d_step { mayRetire -> retireOthers() }; goto delete
  :: keeps && !hasOthers -> goto delete
  :: d_step { mayNoticeOthers -> noticeOthers() }
  od;

removal: /* advanceRemoval */
  do
  :: wish != GONE -> goto plan
  :: CRASHED
  :: d_step { mayNoticeAll -> noticeAll() }
  :: d_step { mayDeleteAll -> deleteAll() }
  :: d_step { mayRelease -> release() }; goto delete
  :: wish == GONE && !anyLive && !isActive(own) && !isActive(member) -> goto delete
  od;

undo: /* giveUp */
  skip;
  d_step {
    if
    :: (move == upgrade || move == discard) && mayUndoUpgrade -> undoUpgrade()
    :: move == downgrade && mayUndoDowngrade -> undoDowngrade()
    :: else
    fi
  };

delete: /* deleteLetGo: not cancelled any more */
#ifndef FRESH_WHILE_DELETING /* broken: an edit's apply may still be under way when the objects are deleted */
  fresh = 0; !late;
#endif
  do
  :: d_step { mayDelete && ownObjects -> ownObjects = 0; removeOwn() }
  :: d_step { mayDelete && !ownObjects -> forgetOwn() }
  :: !mayDelete -> break
  :: CRASHED
  od;
  fresh = 0;
  !late;
  goto plan
}

/* keepingFresh: an edit is rolled out to the own side beside the move. */
active proctype Fresh() {
  do
  :: d_step { fresh && !stopped && !late && isActive(own) -> SAY("applyOwn for an edit: rendered\n"); late = 1 }
  :: d_step { late -> SAY("applyOwn for an edit: applied\n"); late = 0; ownObjects = 1; if :: ownClass == 0 -> ownClass = DEDICATED :: else fi }
  od
}

/* src/workflows/shard.ts */
bit attempt;
#define due (rolling || member == JOINING || (isActive(member) && memberWants))
active proctype Shard() {
  do
  :: d_step { !attempt && (due || !stopped) -> renderShard(); attempt = 1 }
  :: d_step { attempt -> finishShard(); attempt = 0 }
  :: attempt && !stopped -> attempt = 0
  od
}

/* A rollout that the world outside holds up for ever is blocked, with the pod's reason; here each one ends. */
active proctype Cluster() {
  do
  :: ownObjects && !ownServes -> ownServes = 1
  od
}
#endif
