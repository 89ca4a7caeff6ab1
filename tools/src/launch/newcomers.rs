//! Processes that join a running job, and the bounds within which its members come and go.

use std::ffi::OsString;
use std::ops::Range;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::bind::{self, Bind};
use super::job::{Again, Input, Job, Rank};

/// The least number of ranks that go on, and the highest number up to which newcomers join.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Bounds {
    pub(super) least: u32,
    pub(super) most: Option<u32>,
}

/// The processes that join a job on one machine, from the beginning or later.
pub(super) struct Newcomers {
    pub(super) bounds: Bounds,
    /// Numbers of those that join from the beginning.
    pub(super) numbers: Range<u32>,
    /// How they are bound, as the ranks of this host are, of which there were this many at first.
    pub(super) bind: (Bind, usize),
    /// Their additional variables.
    pub(super) environment: Vec<(String, OsString)>,
    pub(super) restarts: u32,
    pub(super) in_its_slot: bool,
}

impl Newcomers {
    /// Sets where newcomers find an invitation, which processes join from the beginning, and which ranks are restarted.
    pub(super) fn join(self, job: &mut Job, directory: &Path) {
        let Self { bounds: Bounds { least, most }, numbers, bind, environment, restarts, in_its_slot } = self;
        let told = |name: &str, value: String| (name.to_owned(), OsString::from(value));
        let bounds = told("KOLO_ELASTIC", format!("{least}:{}", most.unwrap_or(0)));
        for rank in &mut job.ranks {
            rank.environment.push(bounds.clone());
        }
        if most.is_none() {
            return;
        }
        let path = directory.join("invitation");
        let invite = told("KOLO_INVITE", path.display().to_string());
        let joins = vec![told("KOLO_JOIN", format!("file://{}", path.display()))];
        for rank in &mut job.ranks {
            rank.environment.push(invite.clone());
        }
        let places = bind::places(bind.0, bind.1, numbers.len());
        for (number, cpus) in numbers.zip(places.into_iter().skip(bind.1)) {
            let mut environment = environment.clone();
            environment.extend([bounds.clone(), invite.clone(), told("LOCAL_RANK", number.to_string())]);
            environment.extend(joins.iter().cloned());
            let name = Some(format!("newcomer {number}"));
            job.ranks.push(Rank { name, cpus, input: Input::None, ..Rank::new(number, environment) });
        }
        job.again = Some(Again { times: restarts, environment: joins, in_its_slot });
    }
}
