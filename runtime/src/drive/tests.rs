//! Tests of the loop in virtual time: stall, grace, deadline, lost peer, abort, mismatch and suspicion.

use std::time::{Duration, Instant};

use super::patience::{
    ASK_AGAIN, BETWEEN_CHECKS_MAX, HOPELESS_GRACE, LIVING_GRACE, LOSS_GRACE, STALL, TURNS_PER_CHECK,
};
use super::{End, News, Patience, Step, Waiter, until};
use crate::failure::Suspicion;
use crate::wait::{Next, Pacer, Policy, SLEEP_MAX};

const MS: Duration = Duration::from_millis(1);
const LONG: Duration = Duration::from_secs(30);

/// Duration of a step that moves something.
const STEP: Duration = Duration::from_micros(5);

/// Events that end a wait in these tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fails {
    Ended(End),
    /// A mismatch met in the exchange.
    Mismatch,
    /// Peers that turned out to be elsewhere, when asked.
    Asked,
    /// A peer that turned out to be gone.
    Gone,
}

/// A waiter whose events follow the clock. Each takes the time since the start.
struct Script {
    now: Duration,
    steps: u32,
    step: fn(Duration) -> Result<Step, Fails>,
    news: fn(Duration) -> Option<News>,
    answers: fn(Duration, Option<Suspicion>) -> Result<Option<Suspicion>, Fails>,
    is_outrun: fn(Duration) -> bool,
    looks: fn(Duration) -> Result<(), Fails>,
    /// Time for which the thread does not run after a step.
    held_up: fn(Duration) -> Duration,
    /// Times of questions, and whether a rank was suspected.
    asked: Vec<(Duration, bool)>,
    rests: Vec<Next>,
}

const QUIET: Script = Script {
    now: Duration::ZERO,
    steps: 0,
    step: |_| Ok(Step::Waits { moved: false }),
    news: |_| None,
    answers: |_, _| Ok(None),
    is_outrun: |_| false,
    looks: |_| Ok(()),
    held_up: |_| Duration::ZERO,
    asked: Vec::new(),
    rests: Vec::new(),
};

impl Waiter for Script {
    type Error = Fails;

    fn now(&self) -> Instant {
        // An `Instant` has no zero, so any fixed one serves as the start.
        thread_local!(static START: Instant = Instant::now());
        START.with(|start| *start + self.now)
    }

    fn step(&mut self) -> Result<Step, Fails> {
        self.steps += 1;
        let step = (self.step)(self.now);
        if matches!(step, Ok(Step::Waits { moved: true } | Step::Works)) {
            self.now += STEP;
        }
        self.now += (self.held_up)(self.now);
        step
    }

    fn news(&mut self) -> Option<News> {
        (self.news)(self.now)
    }

    fn rest(&mut self, next: Next, _: &mut Pacer) {
        self.rests.push(next);
        self.now += match next {
            Next::Poll | Next::Check => Duration::ZERO,
            Next::Spin => Duration::from_nanos(40),
            Next::Yield => Duration::from_micros(1),
            Next::Sleep | Next::Queue => SLEEP_MAX,
        };
    }

    fn end(&mut self, why: End) -> Fails {
        Fails::Ended(why)
    }

    fn look_for_peers(&mut self) -> Result<(), Fails> {
        (self.looks)(self.now)
    }

    fn ask(&mut self, suspected: Option<Suspicion>) -> Result<Option<Suspicion>, Fails> {
        self.asked.push((self.now, suspected.is_some()));
        (self.answers)(self.now, suspected)
    }

    fn is_outrun(&mut self, _: Suspicion, for_so_long: Duration) -> bool {
        (self.is_outrun)(for_so_long)
    }
}

impl Script {
    fn play(mut self, limit: Duration) -> (Result<(), Fails>, Self) {
        let mut patience = Patience::new(limit.into(), Pacer::new(Policy::OWN_PROCESSOR));
        let result = until(&mut self, &mut patience);
        (result, self)
    }
}

/// Checks that `now` lies within a sleep after `wanted`, and not before it.
fn soon_after(now: Duration, wanted: Duration) {
    assert!(now >= wanted && now <= wanted + 2 * SLEEP_MAX, "{now:?} in place of {wanted:?}");
}

#[test]
fn a_wait_spins_then_yields_then_sleeps() {
    let step = |now| Ok(if now > 20 * MS { Step::Done } else { Step::Waits { moved: false } });
    let (result, script) = Script { step, ..QUIET }.play(LONG);
    assert_eq!(result, Ok(()));
    let first = |wanted| script.rests.iter().position(|next| *next == wanted).expect("it comes");
    assert!(first(Next::Spin) < first(Next::Yield) && first(Next::Yield) < first(Next::Sleep));
    assert!(script.asked.is_empty());
}

#[test]
fn what_moves_all_the_time_never_rests_and_is_looked_after_all_the_same() {
    let step = |_| Ok(Step::Waits { moved: true });
    let (result, script) = Script { step, ..QUIET }.play(100 * MS);
    assert_eq!(result, Err(Fails::Ended(End::Deadline(100 * MS))));
    soon_after(script.now, 100 * MS);
    let looks = script.rests.iter().filter(|next| **next == Next::Check).count();
    assert!(looks > 1 && looks <= (script.steps / TURNS_PER_CHECK) as usize + 1, "{looks}");
    assert!(!script.rests.contains(&Next::Sleep));
}

#[test]
fn a_stalled_wait_asks_and_asks_again() {
    let (result, script) = QUIET.play(3 * STALL + 2 * ASK_AGAIN);
    assert_eq!(result, Err(Fails::Ended(End::Deadline(3 * STALL + 2 * ASK_AGAIN))));
    let times: Vec<Duration> = script.asked.iter().map(|(at, _)| *at).collect();
    assert_eq!(times.len(), 3, "{times:?}");
    for (time, wanted) in times.iter().zip([STALL, STALL + ASK_AGAIN, STALL + 2 * ASK_AGAIN]) {
        soon_after(*time, wanted);
    }
}

#[test]
fn who_moves_now_and_then_does_not_stall() {
    // Something moves every 200 ms.
    let step = |now: Duration| Ok(Step::Waits { moved: now.as_millis() % 200 < 5 });
    let (_, script) = Script { step, ..QUIET }.play(2 * LONG / 60);
    assert!(script.asked.is_empty(), "{:?}", script.asked);
}

#[test]
fn a_deadline_is_kept_whatever_else() {
    for limit in [Duration::ZERO, 7 * MS, 10 * STALL] {
        let (result, script) = QUIET.play(limit);
        assert_eq!(result, Err(Fails::Ended(End::Deadline(limit))));
        soon_after(script.now, limit);
    }
    // The deadline also holds behind another thread, and with work of one's own.
    for step in [(|_| Ok(Step::Behind)) as fn(_) -> _, |_| Ok(Step::Works)] {
        let (result, script) = Script { step, ..QUIET }.play(20 * MS);
        assert_eq!(result, Err(Fails::Ended(End::Deadline(20 * MS))));
        soon_after(script.now, 20 * MS);
    }
}

#[test]
fn an_abort_ends_a_wait_at_once() {
    let news = |now| (now >= 30 * MS).then_some(News::Aborted);
    for step in [
        (|_| Ok(Step::Waits { moved: false })) as fn(_) -> _,
        |_| Ok(Step::Waits { moved: true }),
        |_| Ok(Step::Works),
        |_| Ok(Step::Behind),
    ] {
        let (result, script) = Script { step, news, ..QUIET }.play(LONG);
        assert_eq!(result, Err(Fails::Ended(End::Failed)));
        soon_after(script.now, 30 * MS);
    }
}

#[test]
fn after_a_loss_what_was_sent_before_has_its_time() {
    let news = |now| (now >= 10 * MS).then_some(News::Doomed);
    // Data arrives until 100 ms.
    let step = |now| Ok(Step::Waits { moved: now < 100 * MS });
    let (result, script) = Script { step, news, ..QUIET }.play(LONG);
    assert_eq!(result, Err(Fails::Ended(End::Failed)));
    soon_after(script.now, 100 * MS + LOSS_GRACE);
    // Work that finished meanwhile stays finished.
    let step = |now| Ok(if now > 40 * MS { Step::Done } else { Step::Waits { moved: false } });
    assert_eq!(Script { step, news, ..QUIET }.play(LONG).0, Ok(()));
    // A rank that needs others only for the end of the call does not go on working.
    let step = |_| Ok(Step::Works);
    let (result, script) = Script { step, news, ..QUIET }.play(LONG);
    assert_eq!(result, Err(Fails::Ended(End::Failed)));
    soon_after(script.now, 10 * MS);
}

#[test]
fn a_lost_peer_is_given_up_once_nothing_has_come_for_the_grace() {
    let (result, script) = Script { news: |_| Some(News::Doomed), ..QUIET }.play(LONG);
    assert_eq!(result, Err(Fails::Ended(End::Failed)));
    soon_after(script.now, LOSS_GRACE);
    let (result, script) = Script { news: |_| Some(News::Hopeless), ..QUIET }.play(LONG);
    assert!(result.is_err());
    soon_after(script.now, HOPELESS_GRACE);
    assert!(script.asked.is_empty(), "nobody is asked what is known");
}

#[test]
fn nothing_is_given_up_on_news_that_are_newer_than_the_last_look() {
    // The data came just before the news, while this thread did not run.
    let held_up =
        |now: Duration| if (100..110).contains(&now.as_millis()) { 300 * MS } else { Duration::ZERO };
    let step = |now| Ok(if now >= 200 * MS { Step::Done } else { Step::Waits { moved: false } });
    for late in [News::Lost, News::Doomed, News::Hopeless] {
        let news: fn(Duration) -> Option<News> = match late {
            News::Lost => |now| (now >= 210 * MS).then_some(News::Lost),
            News::Doomed => |now| Some(if now >= 210 * MS { News::Doomed } else { News::Lost }),
            _ => |now| (now >= 210 * MS).then_some(News::Hopeless),
        };
        assert_eq!(Script { step, news, held_up, ..QUIET }.play(LONG).0, Ok(()), "{late:?}");
        // Without data, one more step is enough, or the rest of the grace, as the thread looked until 100 ms.
        let (result, script) = Script { news, held_up, ..QUIET }.play(LONG);
        assert_eq!(result, Err(Fails::Ended(End::Failed)), "{late:?}");
        let grace = if late == News::Lost { LIVING_GRACE } else { Duration::ZERO };
        soon_after(script.now, 400 * MS + grace.saturating_sub(100 * MS + BETWEEN_CHECKS_MAX));
    }
}

#[test]
fn who_did_not_run_has_not_waited_for_the_living() {
    // A pause of the whole host ends at 310 ms, and what a living peer sends comes 100 ms later.
    let held_up = |now: Duration| if (5..10).contains(&now.as_millis()) { 300 * MS } else { Duration::ZERO };
    let step = |now| Ok(if now >= 410 * MS { Step::Done } else { Step::Waits { moved: false } });
    let news = |_| Some(News::Lost);
    assert_eq!(Script { step, news, held_up, ..QUIET }.play(LONG).0, Ok(()));
    // If nothing comes, the pause has added a little to the wait.
    let (result, script) = Script { news, held_up, ..QUIET }.play(LONG);
    assert_eq!(result, Err(Fails::Ended(End::Failed)));
    soon_after(script.now, 300 * MS + LIVING_GRACE - BETWEEN_CHECKS_MAX);
}

#[test]
fn who_waits_for_the_living_only_waits_until_one_of_them_gives_up() {
    // A busy host delays a peer for long.
    let step = |now| Ok(if now > 150 * MS { Step::Done } else { Step::Waits { moved: false } });
    let lost = |_| Some(News::Lost);
    assert_eq!(Script { step, news: lost, ..QUIET }.play(LONG).0, Ok(()));
    let news = |now| Some(if now >= 100 * MS { News::Doomed } else { News::Lost });
    let (result, script) = Script { news, ..QUIET }.play(LONG);
    assert_eq!(result, Err(Fails::Ended(End::Failed)));
    soon_after(script.now, 100 * MS);
    // Even if no report ever comes, the wait ends.
    let (result, script) = Script { news: lost, ..QUIET }.play(LONG);
    assert_eq!(result, Err(Fails::Ended(End::Failed)));
    soon_after(script.now, LIVING_GRACE);
}

#[test]
fn a_mismatch_ends_a_wait_where_it_is_met() {
    let step = |now| if now >= 3 * MS { Err(Fails::Mismatch) } else { Ok(Step::Waits { moved: false }) };
    let (result, script) = Script { step, ..QUIET }.play(LONG);
    assert_eq!(result, Err(Fails::Mismatch));
    soon_after(script.now, 3 * MS);
    // It also ends where peers are found elsewhere.
    let (result, script) = Script { answers: |_, _| Err(Fails::Asked), ..QUIET }.play(LONG);
    assert_eq!(result, Err(Fails::Asked));
    soon_after(script.now, STALL);
}

#[test]
fn what_failed_elsewhere_ends_a_wait() {
    let (result, _) = Script { step: |_| Ok(Step::Failed), ..QUIET }.play(LONG);
    assert_eq!(result, Err(Fails::Ended(End::Failed)));
    // Without a control plane, only the wait itself looks for peers.
    let (result, script) = Script { looks: |_| Err(Fails::Gone), ..QUIET }.play(LONG);
    assert_eq!(result, Err(Fails::Gone));
    soon_after(script.now, STALL);
}

fn left(_: Duration, suspected: Option<Suspicion>) -> Result<Option<Suspicion>, Fails> {
    if suspected.is_some() { Err(Fails::Asked) } else { Ok(Some(Suspicion::HasLeft)) }
}

#[test]
fn another_suspicion_has_its_own_time() {
    // The peer has finished the call, and leaves at 280 ms.
    let answers = |now: Duration, suspected| match now.as_millis() {
        ..280 => Ok(Some(Suspicion::HasFinished)),
        _ if suspected == Some(Suspicion::HasLeft) => Err(Fails::Asked),
        _ => Ok(Some(Suspicion::HasLeft)),
    };
    let (result, script) = Script { answers, ..QUIET }.play(LONG);
    assert_eq!(result, Err(Fails::Asked));
    soon_after(script.now, STALL + 2 * LOSS_GRACE);
}

#[test]
fn a_suspicion_is_believed_after_the_grace() {
    let (result, script) = Script { answers: left, ..QUIET }.play(LONG);
    assert_eq!(result, Err(Fails::Asked));
    let asked: Vec<bool> = script.asked.iter().map(|(_, suspected)| *suspected).collect();
    assert_eq!(asked, [false, true]);
    soon_after(script.now, STALL + LOSS_GRACE);
}

#[test]
fn a_suspicion_is_dropped_when_something_comes() {
    // Messages that the peer sent before it left arrive at 270 ms; then the wait stalls again.
    let step = |now: Duration| Ok(Step::Waits { moved: (270..275).contains(&now.as_millis()) });
    let (result, script) = Script { step, answers: left, ..QUIET }.play(LONG);
    assert_eq!(result, Err(Fails::Asked));
    let asked: Vec<bool> = script.asked.iter().map(|(_, suspected)| *suspected).collect();
    assert_eq!(asked, [false, false, true]);
    // The peer is not asked again before the interval is over.
    soon_after(script.now, STALL + ASK_AGAIN + LOSS_GRACE);
}

#[test]
fn who_is_still_heard_is_not_suspected_for_as_long_as_that_is_credible() {
    let is_outrun = |left_for: Duration| left_for < Duration::from_secs(4);
    let (result, script) = Script { answers: left, is_outrun, ..QUIET }.play(LONG);
    assert_eq!(result, Err(Fails::Asked));
    soon_after(script.now, STALL + Duration::from_secs(4));
    assert!(script.asked.iter().rev().skip(1).all(|(_, suspected)| !suspected), "{:?}", script.asked);
}
