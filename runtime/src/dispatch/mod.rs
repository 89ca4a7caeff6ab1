//! Decides which way a call goes, in one place for all code that runs, starts, explains or checks calls.

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
use crate::exchange::compiled::CompiledExchange;
use crate::symmetric::SymmetricBuffers;

/// The way of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// The exchange of the host.
    Exchange,
    /// A plan, run by the engine.
    Plan,
}

/// Decision about the way of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Decision {
    /// Whether the ranks first ask each other if all their buffers are symmetric, and then access each other's buffers.
    pub(crate) asks_for_symmetric: bool,
    /// The way if the buffers are not symmetric, or if the ranks do not ask.
    pub(crate) way: Way,
}

/// Decides which way a call goes. The decision is the same on all ranks.
#[inline(always)]
pub(crate) fn decide(
    exchange: Option<&CompiledExchange>,
    symmetric: &SymmetricBuffers,
    call: &Call,
    form: Form,
) -> Decision {
    Decision {
        asks_for_symmetric: form == Form::Blocking && symmetric.considers(call),
        way: if exchange.is_some_and(|exchange| exchange.serves(call)) { Way::Exchange } else { Way::Plan },
    }
}

/// The way of a call, with the reasons for it.
#[derive(Debug)]
pub(crate) enum CarriedOut {
    /// The exchange, described in words.
    Exchange(String),
    Plan(Box<Choice>),
    /// A plan of a file, described in words, and the choice without it.
    File(String, Box<Choice>),
}

impl CarriedOut {
    /// Returns the name of the algorithm, `exchange`, or `plan` for a plan of a file.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Exchange(_) => "exchange",
            Self::Plan(choice) => choice.algorithm.name(),
            Self::File(..) => "plan",
        }
    }
}

impl fmt::Display for CarriedOut {
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
