//! Which way a call goes: decided in one place, for those who run calls, start them, explain them and check the choice.

mod last_call;
mod plan_files;
mod planner;

use std::fmt;

use kolo_collectives::select::Choice;

pub(crate) use last_call::{Known, LastCall};
pub(crate) use planner::{Limits, Planner};

use crate::call::Call;
use crate::exchange::compiled::CompiledExchange;
use crate::symmetric::SymmetricBuffers;

/// Form of a call. Blocking and started calls do not match each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Blocking,
    Started,
}

/// The carrier of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// The exchange of the host.
    Exchange,
    /// The plan of an algorithm, by the engine.
    Plan,
}

/// Which way a call goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Decision {
    /// Whether the ranks ask each other first if all their buffers are symmetric, and then reach into each other's.
    pub(crate) asks_for_symmetric: bool,
    /// Path if they are not, or if that is not asked for.
    pub(crate) way: Way,
}

/// Decides. The same on all ranks.
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

/// The carrier of a call, with its reasons.
#[derive(Debug)]
pub(crate) enum CarriedOut {
    /// In words.
    Exchange(String),
    Plan(Box<Choice>),
    /// A plan of a file, in words; and the choice without it.
    File(String, Box<Choice>),
}

impl CarriedOut {
    /// Its name: that of an algorithm, or [`CompiledExchange`]'s, or `plan` for one of a file.
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
