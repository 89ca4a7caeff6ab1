//! Settings that were renamed. The old name is read for one version, with a warning.

use std::sync::Once;

struct Renamed {
    name: &'static str,
    before: &'static str,
    warned: Once,
}

/// Version 0.2 drops these.
static RENAMED: [Renamed; 2] = [
    Renamed { name: "KOLO_EXCHANGE_BYTES", before: "KOLO_TINY_BYTES", warned: Once::new() },
    Renamed { name: "KOLO_SYMMETRIC_BYTES", before: "KOLO_DIRECT_BYTES", warned: Once::new() },
];

/// The value of a setting under its name or its former name. The new name counts where both are set.
pub(super) fn value(name: &str, get: &dyn Fn(&str) -> Option<String>) -> Option<String> {
    let value = get(name);
    let Some(renamed) = RENAMED.iter().find(|renamed| renamed.name == name) else { return value };
    let Some(old) = get(renamed.before) else { return value };
    renamed.warned.call_once(|| {
        let fate = if value.is_some() { "ignored, since both are set" } else { "read until version 0.2" };
        let text = format!("{} is now {name}; the old name is {fate}", renamed.before);
        tracing::warn!("{text}");
        // Programs that log nothing need the line too: their setting will have no effect in the next version.
        eprintln!("kolo: warning: {text}");
    });
    value.or(Some(old))
}
