//! Decides which executor runs a call, in one place for all code that runs, starts, explains or checks calls.

mod last_call;
mod plan_files;
mod planner;
mod recent;

use std::fmt;

use kolo_collectives::select::Choice;

pub(crate) use last_call::{Known, LastCall};
pub use plan_files::serving_plans;
pub(crate) use planner::{Limits, Planner};
pub use planner::{apply_settings, offered_channels};

use crate::call::{Call, Form};
use crate::engine::Reservation;
use crate::exchange::compiled::CompiledExchange;
use crate::symmetric::SymmetricBuffers;

/// The executor of a call. A call that has asked for symmetric buffers has its place in the order of calls already.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Executor {
    /// The exchange of the host, in this turn or in the next one that is free.
    Exchange { turn: Option<u64> },
    /// The engine, which runs a plan, in this place or behind all operations.
    Engine { reservation: Option<Reservation> },
}

/// Decision about the executor of a call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Decision {
    /// Whether the ranks first ask each other if all their buffers are symmetric, and then access each other's buffers.
    pub(crate) asks_for_symmetric: bool,
    /// The executor if the buffers are not symmetric, or if the ranks do not ask.
    pub(crate) executor: Executor,
}

/// Decides which executor runs a call. The decision is the same on all ranks.
#[inline(always)]
pub(crate) fn decide(
    exchange: Option<&CompiledExchange>,
    symmetric: &SymmetricBuffers,
    call: &Call,
    form: Form,
) -> Decision {
    Decision {
        asks_for_symmetric: form == Form::Blocking && symmetric.considers(call),
        executor: match exchange.is_some_and(|exchange| exchange.serves(call)) {
            true => Executor::Exchange { turn: None },
            false => Executor::Engine { reservation: None },
        },
    }
}

/// The executor of a call, with the reasons for it.
#[derive(Debug)]
pub(crate) enum Explanation {
    /// The exchange, described in words.
    Exchange(String),
    /// The engine, with this plan.
    Plan(Box<Choice>),
    /// A plan of a file, described in words, and the choice without it.
    File(String, Box<Choice>),
}

impl Explanation {
    /// Returns the name of the algorithm, `exchange`, or `plan` for a plan of a file.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Exchange(_) => "exchange",
            Self::Plan(choice) => choice.algorithm.name(),
            Self::File(..) => "plan",
        }
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let choice = match self {
            Self::Exchange(words) => return f.write_str(words),
            Self::Plan(choice) => choice,
            Self::File(words, choice) => {
                write!(f, "{words}\n  without it: ")?;
                choice
            }
        };
        let Choice { algorithm, reason, segment_bytes, window, .. } = &**choice;
        write!(f, "{algorithm}: {reason}; segments of {segment_bytes} bytes, {window} in flight")?;
        for (algorithm, cost) in &choice.losers {
            match cost {
                Ok(seconds) => write!(f, "\n  {algorithm}: {:.1} us", seconds * 1e6),
                Err(because) => write!(f, "\n  {algorithm}: {because}"),
            }?;
        }
        Ok(())
    }
}
