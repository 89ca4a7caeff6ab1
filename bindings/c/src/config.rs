//! Resolves settings: `koloConfig_t` overrides the environment, which overrides the defaults.

use std::time::Duration;

use kolo_rs::config::{Config, Determinism, parse_port_range, parse_transports};

use crate::abi::{self, UNSET, Versioned};
use crate::checked::{head, text};
use crate::guard::{Outcome, usage};

/// Returns the settings in force.
///
/// # Safety
/// `given` is null or points to a struct that begins with a `Versioned`, and is a valid `koloConfig_t` if that head is right.
pub(crate) unsafe fn resolve(given: *const abi::Config) -> Outcome<Config> {
    let mut config = Config::from_env()?;
    if given.is_null() {
        return Ok(config);
    }
    // SAFETY: the caller's promise; only the head is read before it has been checked.
    head("koloConfig_t", unsafe { given.cast::<Versioned>().read() }, abi::Config::HEAD)?;
    // SAFETY: the checked head shows that the whole struct is there; its strings are C strings.
    let given = unsafe { given.read() };
    // SAFETY: as above.
    let string = |what, value| unsafe { text(what, value) };
    if let Some(transport) = string("transport", given.transport)? {
        config.transports = parse_transports(transport)?;
    }
    if let Some(algorithms) = string("algorithms", given.algorithms)? {
        config.algorithms = algorithms.to_owned();
    }
    let owned = |text: &str| Some(text.to_owned());
    if let Some(host_id) = string("host_id", given.host_id)? {
        config.host_id = owned(host_id);
    }
    if let Some(interfaces) = string("socket_interfaces", given.socket_interfaces)? {
        config.socket_interfaces = owned(interfaces);
    }
    if let Some(congestion) = string("socket_congestion", given.socket_congestion)? {
        config.socket_congestion = owned(congestion);
    }
    if let Some(range) = string("port_range", given.port_range)? {
        config.port_range = Some(parse_port_range(range)?);
    }
    if let Some(timeout) = number("timeout_ms", given.timeout_ms, 1)? {
        config.timeout = Duration::from_millis(timeout);
    }
    if let Some(timeout) = number("join_timeout_ms", given.join_timeout_ms, 1)? {
        config.join_timeout = Duration::from_millis(timeout);
    }
    if let Some(bytes) = number("segment_bytes", given.segment_bytes, 1)? {
        config.segment_bytes = Some(bytes as usize);
    }
    if let Some(segments) = number("window", given.window, 1)? {
        config.window = Some(segments as usize);
    }
    if let Some(bytes) = number("exchange_bytes", given.exchange_bytes, 0)? {
        config.exchange_bytes = Some(bytes as usize);
    }
    if let Some(spin) = number("spin_us", given.spin_us, 0)? {
        config.spin = Some(Duration::from_micros(spin));
    }
    config.determinism = match given.determinism {
        0 => Determinism::Repeatable,
        1 => Determinism::Canonical,
        other if i64::from(other) == UNSET => config.determinism,
        other => return Err(usage(format!("determinism is {other}; use KOLO_REPEATABLE or KOLO_CANONICAL"))),
    };
    Ok(config)
}

/// Returns a number; `None` for `KOLO_UNSET`.
fn number(what: &str, value: i64, least: u64) -> Outcome<Option<u64>> {
    if value == UNSET {
        return Ok(None);
    }
    match u64::try_from(value) {
        Ok(value) if value >= least => Ok(Some(value)),
        _ => Err(usage(format!("{what} is {value}; use KOLO_UNSET or at least {least}"))),
    }
}
