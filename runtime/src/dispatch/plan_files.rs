//! Plans from files (`KOLO_PLAN`), as a communicator uses them.

use std::sync::Arc;

use kolo_collectives::overrides::Overrides;
use kolo_collectives::plan::{Collective, Placement, Plan};
use kolo_collectives::select::Order;
use kolo_collectives::task::Task;

use super::planner::{Limits, Planned};
use crate::plans::LoadedPlans;

/// The facts about a call that files of plans need.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    pub(crate) collective: Collective,
    pub(crate) root: u32,
    /// Bytes of the vector, or of a block.
    pub(crate) bytes: u64,
    /// Whether blocks differ in length or ranks give shards. No file has plans for such calls.
    pub(crate) irregular: bool,
}

/// The files, in the order in which they are asked.
#[derive(Debug, Default)]
pub(crate) struct PlanFiles {
    files: Vec<PlanFile>,
}

#[derive(Debug)]
pub(crate) struct PlanFile {
    loaded: LoadedPlans,
    /// Segments in flight: the file's number, as far as there are channels. It depends only on facts that are the same on
    /// all ranks: some may use fewer channels than others.
    window: usize,
    /// This rank's plans out of place and in place, or the reason why none of this communicator's calls can take them.
    /// Either all ranks have plans or none has.
    own: Result<[Arc<Plan>; 2], String>,
}

/// Returns the first file that serves a call, as communicators find it: for ranks on these hosts, whose names are not known,
/// with the channels of the task. There is none if `overrides` ask for an algorithm.
#[must_use]
pub fn serving_plans(
    loaded: &[LoadedPlans],
    hosts: &[u32],
    task: &Task,
    bytes: u64,
    order: Order,
    overrides: &Overrides,
) -> Option<LoadedPlans> {
    let limits = Limits { channels: task.channels, stages: task.stages };
    let files = PlanFiles::new(loaded, 0, hosts, None, limits, order == Order::Canonical);
    let asked =
        Asked { collective: task.collective, root: task.root, bytes, irregular: task.shards.is_some() };
    files.serving(asked, overrides, order, || task.clone()).map(|file| file.loaded.clone())
}

impl PlanFiles {
    pub(crate) fn new(
        loaded: &[LoadedPlans],
        rank: u32,
        hosts: &[u32],
        names: Option<&[&str]>,
        limits: Limits,
        is_canonical: bool,
    ) -> Self {
        let file = |loaded: &LoadedPlans| {
            let set = &loaded.set;
            let channels = set.channels();
            let own = set.serves().fits(hosts, names).and_then(|()| {
                if is_canonical && set.serves().collective.reduces() {
                    Err("KOLO_DETERMINISM=canonical requires one order of reduction".to_owned())
                } else if set.is_staged() && !limits.stages {
                    Err("it needs memory that the ranks of each host share".to_owned())
                } else if channels > limits.channels {
                    let most = limits.channels;
                    Err(format!("it needs {channels} channels to a peer, but the transports offer {most}"))
                } else {
                    let plan = |placement| Arc::new(set.plans(placement)[rank as usize].clone());
                    Ok([Placement::OutOfPlace, Placement::InPlace].map(plan))
                }
            });
            let window = (set.window() as usize).min(usize::from(limits.channels / channels.max(1)));
            PlanFile { loaded: loaded.clone(), window, own }
        };
        Self { files: loaded.iter().map(file).collect() }
    }

    /// Returns the first file that serves a call, unless an algorithm was asked for.
    pub(crate) fn serving(
        &self,
        asked: Asked,
        overrides: &Overrides,
        order: Order,
        task: impl Fn() -> Task,
    ) -> Option<&PlanFile> {
        // Usually there is none, and nothing else needs to be looked at.
        let found = self.files.iter().find(|file| file.refusal(asked).is_none())?;
        overrides.force(&task(), asked.bytes, asked.irregular, order).is_none().then_some(found)
    }

    /// Returns, for each file that does not serve a call, its path and the reason.
    pub(crate) fn unused(
        &self,
        asked: Asked,
        overrides: &Overrides,
        order: Order,
        task: impl Fn() -> Task,
    ) -> Vec<String> {
        let serving = self.serving(asked, overrides, order, &task).map(|file| &file.loaded.path);
        let reason = |file: &PlanFile| {
            let path = &file.loaded.path;
            let because = match (file.refusal(asked), serving) {
                (Some(refusal), _) => refusal,
                (None, Some(other)) if other == path => return None,
                (None, Some(other)) => format!("{} comes first", other.display()),
                (None, None) => "KOLO_ALGO requests an algorithm".to_owned(),
            };
            Some(format!("KOLO_PLAN {} is not used: {because}", path.display()))
        };
        self.files.iter().filter_map(reason).collect()
    }

    /// Returns the calls that files serve: the collective, the root if it matters, and the shortest and longest length.
    pub(crate) fn calls(&self) -> impl Iterator<Item = (Collective, Option<u32>, (u64, u64))> + '_ {
        let usable = self.files.iter().filter(|file| file.own.is_ok());
        usable.map(|file| {
            let serves = file.loaded.set.serves();
            let root = serves.collective.is_rooted().then_some(serves.root);
            (serves.collective, root, (serves.from_bytes, serves.to_bytes))
        })
    }

    /// Describes the files: the calls that they serve, or the reason why they cannot serve here.
    pub(crate) fn describe(&self) -> Vec<String> {
        let words = |file: &PlanFile| match &file.own {
            Ok(_) => format!("{} for {}", file.words(), file.loaded.set.serves().collective),
            Err(because) => format!("{} is not used: {because}", file.loaded.path.display()),
        };
        self.files.iter().map(words).collect()
    }
}

impl PlanFile {
    /// Returns the reason why the file does not serve a call.
    fn refusal(&self, asked: Asked) -> Option<String> {
        let Asked { collective, root, bytes, irregular } = asked;
        let fits = match &self.own {
            Err(because) => Err(because.clone()),
            Ok(_) if irregular => Err("blocks differ in length, or ranks give shards".to_owned()),
            Ok(_) => self.loaded.set.serves().serves(collective, root, bytes),
        };
        fits.err()
    }

    /// Returns the plan for a call that the file serves, and how to run it.
    pub(crate) fn planned(&self, placement: Placement, element_bytes: usize) -> Option<Planned> {
        let plan = self.own.as_ref().ok()?[placement as usize].clone();
        let set = &self.loaded.set;
        Some(Planned {
            segment_elements: (set.segment_bytes() as usize / element_bytes).max(1),
            window: self.window,
            plan,
        })
    }

    /// Names the plan, its file and its digest.
    pub(crate) fn words(&self) -> String {
        let LoadedPlans { path, set, digest } = &self.loaded;
        format!("plan {} of {} ({digest})", set.name(), path.display())
    }

    /// Describes how the plan runs.
    pub(crate) fn describe(&self) -> String {
        let set = &self.loaded.set;
        format!(
            "{}: KOLO_PLAN; segments of {} bytes, {} in flight",
            self.words(),
            set.segment_bytes(),
            self.window
        )
    }
}
