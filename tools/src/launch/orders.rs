//! The orders that an agent reads behind its assignment: a line for each signal of the launcher.
//!
//! `signal SIGUSR1` has the agent pass the signal on to its ranks, and `end SIGINT` has it end them with that signal.

use std::io::BufRead;
use std::sync::mpsc::Sender;

use signal_hook::consts::SIGTERM;
use signal_hook::low_level::signal_name;

use super::guardian::USER_SIGNALS;
use super::job::Event;

/// Meaning of the standard input of the process that starts ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Orders {
    /// It is the input of rank 0.
    None,
    /// It has orders, and its end of file asks the job to end, as a signal would.
    EndsWithInput,
    /// It has orders. An end of file alone means that the launcher is gone, and the ranks go on.
    EndsWhenTold,
}

/// Returns the order to send the ranks a signal.
pub(super) fn pass_on(signal: i32) -> String {
    format!("signal {}\n", name(signal))
}

/// Returns the order to end the ranks with a signal.
pub(super) fn end(signal: i32) -> String {
    format!("end {}\n", name(signal))
}

/// Names mean the same on all machines, and numbers do not.
fn name(signal: i32) -> &'static str {
    signal_name(signal).unwrap_or("SIGTERM")
}

/// Turns the orders into events, until one of them ends the job or the input ends.
pub(super) fn follow(orders: Orders, input: impl BufRead, events: &Sender<Event>) {
    for line in input.lines().map_while(Result::ok) {
        let (order, signal) = line.split_once(' ').unwrap_or((&line, ""));
        let signal = USER_SIGNALS.into_iter().find(|known| name(*known) == signal);
        match (order, signal) {
            ("signal", Some(signal)) => drop(events.send(Event::Signal(signal))),
            ("end", signal) => {
                let _ = events.send(Event::Signal(signal.unwrap_or(SIGTERM)));
                return;
            }
            _ => {}
        }
    }
    let _ = events.send(match orders {
        Orders::EndsWhenTold => Event::OnItsOwn,
        Orders::None | Orders::EndsWithInput => Event::Signal(SIGTERM),
    });
}

#[cfg(test)]
mod tests {
    use signal_hook::consts::{SIGINT, SIGUSR1, SIGUSR2};

    use super::*;

    /// Returns the signals of the events, with 0 for the loss of the launcher.
    fn followed(orders: Orders, text: &str) -> Vec<i32> {
        let (sender, events) = std::sync::mpsc::channel();
        follow(orders, text.as_bytes(), &sender);
        let signal = |event| if let Event::Signal(signal) = event { signal } else { 0 };
        events.try_iter().map(signal).collect()
    }

    #[test]
    fn orders_become_signals() {
        let text = format!("{}{}{}signal SIGUSR1\n", pass_on(SIGUSR2), "signal SIGNONSENSE\n", end(SIGINT));
        assert_eq!(followed(Orders::EndsWhenTold, &text), [SIGUSR2, SIGINT], "nothing follows the end");
        assert_eq!(followed(Orders::EndsWithInput, &pass_on(SIGUSR1)), [SIGUSR1, SIGTERM]);
        assert_eq!(followed(Orders::EndsWhenTold, ""), [0]);
        assert_eq!(followed(Orders::EndsWhenTold, "end"), [SIGTERM]);
    }
}
