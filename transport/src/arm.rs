//! Arms all endpoints of one owner before it sleeps.

use crate::{Armed, Endpoint, ParkBy};

/// Arms all endpoints, and passes each answer to `each`. Returns how the owner is to sleep: on a word if all endpoints with
/// anything outstanding offer one. An owner that waits only for its own host is thus woken through memory; waking it
/// through a socket would cost both ends several system calls.
pub fn arm_all(endpoints: &mut [Box<dyn Endpoint>], mut each: impl FnMut(Armed<'_>)) -> ParkBy {
    let mut by = ParkBy::Word;
    for endpoint in endpoints.iter_mut().filter(|endpoint| !endpoint.caps().park_word) {
        let armed = endpoint.arm(ParkBy::Fd);
        if !matches!(armed, Armed::Idle) {
            by = ParkBy::Fd;
        }
        each(armed);
    }
    for endpoint in endpoints.iter_mut().filter(|endpoint| endpoint.caps().park_word) {
        each(endpoint.arm(by));
    }
    by
}
