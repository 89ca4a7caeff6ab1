//! Attempts of members to regroup that fail and are repeated.

use std::cell::Cell;
use std::os::unix::fs::PermissionsExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::Communicator;
use super::cluster::Cluster;
use super::elastic::REGROUP_ATTEMPTS;
use super::survivors::Survivors;
use crate::communicator::{join_admitted, patience, regroup, settings};
use crate::config::{Config, Elastic};
use crate::control::{Applicant, ControlRuntime, Invitation, Purpose, Until};
use crate::error::{AbortReason, Error, JoinFailure, Result};
use crate::join::JoinSpec;
use crate::types::ReduceOp;

const LONG: Duration = Duration::from_secs(30);

/// Returns settings with which a pause of the machine is no rank's silence.
fn patient() -> Config {
    Config::default().with(|config| config.silent_after = LONG)
}

/// Shrinks. `fails` gives the error of a rank's n-th attempt, if it is to fail.
fn shrink(comm: &Communicator, fails: impl Fn(u32) -> Option<Error>) -> (u32, Result<Communicator>) {
    let (attempts, deadline) = (Cell::new(0), Instant::now() + LONG);
    let made = comm.form_again(Purpose::Shrink, "shrink", Until::GivingUp(deadline), |ranks, seed| {
        attempts.set(attempts.get() + 1);
        match fails(attempts.get()) {
            Some(error) => Err(error),
            None => {
                let making = regroup(&comm.shared, ranks, seed, deadline)?;
                Ok((Communicator::make(making)?, Vec::new()))
            }
        }
    });
    (attempts.get(), made)
}

/// Returns the error of a rank that has waited for a stopped one.
fn nobody_answers(rank: u32) -> Error {
    Error::Join {
        rank: Some(rank),
        kind: JoinFailure::Survivors,
        problem: "rank 0 cannot take part: it does not answer".to_owned(),
        remedy: "Call shrink or grow again".to_owned(),
    }
}

fn sum(comm: &Communicator) -> Result<f32> {
    let mut data = [1.0_f32];
    comm.all_reduce(&mut data, ReduceOp::Sum)?;
    Ok(data[0])
}

/// The lowest rank, at whose port the others meet, or another one was away for too long, and is back when the ranks
/// agree.
#[test]
fn who_was_away_while_the_others_met_is_met_again() -> Result<()> {
    for away in [0, 2] {
        let met = Cluster::with_config(3, &patient(), |comm| {
            let rank = comm.rank();
            let (attempts, made) =
                shrink(&comm, |attempt| (attempt == 1 && rank != away).then(|| nobody_answers(rank)));
            let made = made?;
            Ok((attempts, made.ranks_before(), sum(&made)?))
        })?;
        for met in met {
            assert_eq!(met?, (2, [0, 1, 2].map(Some).to_vec(), 3.0), "rank {away} was away");
        }
    }
    Ok(())
}

/// The others may count the vote of a rank whose time is over.
#[test]
fn a_rank_whose_time_is_over_does_not_give_up_alone() -> Result<()> {
    let all = std::sync::Barrier::new(3);
    let met = Cluster::with_config(3, &patient(), |comm| {
        let until = if comm.rank() == 1 { Instant::now() } else { Instant::now() + LONG };
        let in_turn = |agrees: &dyn Fn() -> bool| {
            if comm.rank() != 1 {
                all.wait();
            }
            let agrees = agrees();
            if comm.rank() == 1 {
                all.wait();
            }
            all.wait();
            agrees
        };
        let confirms =
            || comm.agree_in_call(Purpose::Confirm, "shrink", 1, until).map(|met| (met.flags, met.ranks));
        let confirmed = in_turn(&|| matches!(confirms(), Ok((0, ranks)) if ranks.len() == 3));
        let entered = in_turn(&|| !matches!(comm.all_enter(until), Ok(false)));
        (confirmed, entered)
    })?;
    assert_eq!(met, [(true, false); 3], "all decide, and that rank 0 and 2 were not there in time");
    Ok(())
}

/// The others have entered the new communicator and dropped the one before. There, they would count as gone.
#[test]
fn a_rank_without_which_the_others_enter_does_not_begin_again() -> Result<()> {
    let entered = Cluster::local(2, |comm| {
        comm.shared.membership.control().shared().fence(comm.shared.group.id, 1 - comm.rank());
        comm.all_enter(Instant::now() + LONG)
    })?;
    for entered in entered {
        assert!(matches!(entered, Err(Error::Aborted { kind: AbortReason::Fenced, .. })), "{entered:?}");
    }
    Ok(())
}

/// All have come. Rank 1 does not make its part until rank 0 has given up.
#[test]
fn an_error_says_if_the_time_was_too_short() -> Result<()> {
    for limit in (0..10).map(|doublings| Duration::from_millis(500 << doublings)) {
        let (gave_up, is_first) = (std::sync::Barrier::new(2), AtomicBool::new(true));
        let shrunk = Cluster::local(2, |comm| {
            let own = if comm.rank() == 0 { limit } else { LONG };
            let until = Until::GivingUp(Instant::now() + own);
            let shrunk = comm.form_again(Purpose::Shrink, "shrink", until, |_, _| {
                if comm.rank() == 1 && is_first.swap(false, Ordering::Relaxed) {
                    gave_up.wait();
                }
                Err(nobody_answers(comm.rank()))
            });
            if comm.rank() == 0 {
                gave_up.wait();
            }
            shrunk.map(drop)
        })?;
        match &shrunk[0] {
            // It was too short even for all to come.
            Err(Error::Timeout { .. }) => {}
            Err(Error::Aborted { kind: AbortReason::Timeout, reason, .. }) => {
                assert!(reason.contains("rank 0 cannot take part"), "it was what took the time: {reason}");
                return Ok(());
            }
            other => panic!("{other:?}"),
        }
    }
    panic!("no time is long enough")
}

#[test]
fn members_that_never_meet_give_up_together() -> Result<()> {
    let met = Cluster::with_config(3, &patient(), |comm| {
        let (rank, (attempts, made)) = (comm.rank(), shrink(&comm, |_| Some(nobody_answers(0))));
        assert!(made.is_err(), "rank {rank}");
        Ok((attempts, sum(&comm)?))
    })?;
    met.into_iter().try_for_each(|met| {
        assert_eq!(met?, (REGROUP_ATTEMPTS, 3.0), "the communicator is as it was");
        Ok(())
    })
}

/// Joins, and drops the communicator as soon as it is made, this many times.
fn come_and_leave(invitation: &Invitation, times: u32) -> Result<()> {
    let (config, runtime) = (patient(), ControlRuntime::new()?);
    let (spec, own) = (JoinSpec::local(1).remove(0), settings(&config)?);
    let applicant = Applicant::new(invitation, spec, own, None, config.silent_after, runtime)?;
    for _ in 0..times {
        let mut offer = applicant.wait(&|| Ok(invitation.clone()), patience(&config), None)?;
        join_admitted(&applicant, &mut offer, &config, &Elastic::default()).and_then(Communicator::make)?;
    }
    Ok(())
}

/// A further attempt would be without the newcomer, and succeed.
#[test]
fn members_give_up_if_a_newcomer_leaves_again_and_again_in_the_last_step() -> Result<()> {
    let invitations = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let newcomer = scope.spawn(move || {
            let invitation: Invitation = invitations.1.recv().expect("rank 0 sends it");
            come_and_leave(&invitation, REGROUP_ATTEMPTS)
        });
        let invite = std::sync::Mutex::new(invitations.0);
        let grown = Cluster::with_config(2, &patient(), |comm| {
            if comm.rank() == 0 {
                invite.lock().expect("no panic").send(comm.accept()?).expect("the newcomer lives");
            }
            loop {
                let mut waiting = [comm.waiting()];
                comm.all_reduce(&mut waiting, ReduceOp::Sum)?;
                if waiting[0] > 0 {
                    break;
                }
            }
            Ok(comm.grow(3).map(drop))
        })?;
        for grown in grown {
            let grown: Result<()> = grown?;
            assert!(matches!(grown, Err(Error::Aborted { .. })), "{grown:?}");
        }
        newcomer.join().expect("no panic")
    })
}

#[test]
fn what_would_fail_again_is_not_tried_again() -> Result<()> {
    let met = Cluster::with_config(2, &patient(), |comm| {
        let refused = || Error::system("mapping memory", std::io::ErrorKind::OutOfMemory.into());
        let (rank, (attempts, made)) = (comm.rank(), shrink(&comm, |_| (comm.rank() == 1).then(refused)));
        match (rank, made) {
            (1, Err(Error::System { .. })) | (0, Err(_)) => attempts,
            (rank, made) => panic!("rank {rank}: {made:?}"),
        }
    })?;
    assert_eq!(met, [1, 1]);
    Ok(())
}

/// Launchers of two hosts have separate folders, which no rank can tell from a shared one. The folder may be one to
/// which other users write.
#[test]
fn every_rank_keeps_an_invitation_where_its_launcher_wants_it() -> Result<()> {
    let folder = tempfile::tempdir().expect("a folder");
    let runtime = ControlRuntime::new()?;
    let rank = |spec: JoinSpec| -> Result<()> {
        let path = folder.path().join(spec.rank.to_string());
        let (draft, other) =
            (path.with_extension(format!("new{}", std::process::id())), path.with_extension("other"));
        std::fs::write(&other, "precious").expect("a file");
        std::os::unix::fs::symlink(&other, &draft).expect("a link under a name that can be guessed");
        let invite = |name: &str| (name == "KOLO_INVITE").then(|| path.display().to_string());
        let builder = Communicator::builder().join(spec).control_runtime(runtime.clone());
        let comm = builder.connect_by(&invite)?;
        let invited = || {
            let mode = std::fs::metadata(&path).expect("it was written").permissions().mode();
            assert_eq!(mode & 0o077, 0, "other users cannot read it");
            std::fs::read_to_string(&path).expect("it was written").parse::<Invitation>()
        };
        invited()?;
        // Others may be waiting for the file to be written again.
        std::fs::remove_file(&path).expect("it is there");
        let next = comm.shrink()?;
        invited()?;
        assert_eq!(std::fs::read_to_string(&other).expect("it is there"), "precious");
        sum(&next).map(drop)
    };
    let rank = &rank;
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            JoinSpec::local(2).into_iter().map(|spec| scope.spawn(move || rank(spec))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("no panic"))
    })
}

#[test]
fn a_step_that_panics_leaves_no_time_limit_and_lets_nobody_wait_for_it() -> Result<()> {
    Cluster::local(2, |comm| {
        let mut group = Survivors::new(comm);
        let panics = |_: &Communicator| -> Result<()> { panic!("injected") };
        let waits = |comm: &Communicator| comm.recv(&mut [0_u8], 0);
        if group.comm().rank() == 1 {
            let error = waits(group.comm()).expect_err("rank 0 has left its step");
            return assert!(group.comm().is_revoked(), "{error}");
        }
        catch_unwind(AssertUnwindSafe(|| group.run_within(LONG, panics))).expect_err("injected");
        assert_eq!(group.comm().shared.time_limit.left(), None);
    })
    .map(drop)
}
