//! Plan sets: the plans of all ranks as one value, made by a generator or found by a search, written to a file or read
//! from one.
//!
//! A [`PlanFile`] is the unchecked content of a file. A [`PlanSet`] is proved: its only constructor, [`PlanSet::new`],
//! bounds all numbers and then has the [checker](crate::check) prove the plans, for both placements and for mixtures of
//! them. Ranks need not agree on where their buffers lie, so a set has a plan for each placement.

mod programs;

use serde::{Deserialize, Serialize};

use crate::check::{Options, check};
use crate::layout::{Layout, Shape};
use crate::plan::{Collective, Cut, Like, Placement, Plan, Space, Step};
use crate::select::Choice;
use crate::stage::{PAYLOAD_BYTES_MAX, Payload};
use crate::task::Task;
use programs::{blocks_of, plans_of, stages_of};

/// The version of the format that this build writes and reads.
pub const VERSION: u32 = 1;

/// Bounds on what a file may ask for, so that neither reading nor proving it takes long.
const RANKS_MAX: u32 = 512;
const WINDOW_MAX: u32 = 64;
const SEGMENT_BYTES_MAX: u64 = 64 << 20;
/// Scratch memory of all segments in flight on a rank.
const STAGING_BYTES_MAX: u64 = 256 << 20;
const NAME_BYTES_MAX: usize = 200;

/// Bytes of the longest element.
const ELEMENT_BYTES_MAX: u64 = 8;

/// Alignment of scratch: a block begins on a cache line of its own, unless it is short and a step names it together with
/// the block before it.
pub const SCRATCH_ALIGN: usize = 64;

/// Bytes that a block of scratch takes at most beyond its data, which it holds in whole elements.
const SCRATCH_BLOCK_BYTES: u64 = SCRATCH_ALIGN as u64 + ELEMENT_BYTES_MAX;

/// The most segments in flight for plans that use stages.
pub const STAGED_WINDOW_MAX: u32 = 4;

/// Content of a plan file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlanFile {
    /// Version of the format: [`VERSION`].
    pub version: u32,
    /// Description of the plans, for people.
    pub name: String,
    /// The calls that the plans serve.
    pub serves: Serves,
    /// Bytes per segment, of the vector or of the longest block.
    pub segment_bytes: u64,
    /// Segments in flight.
    pub window: u32,
    /// How the caller's buffers are cut.
    pub cut: Cut,
    /// The shared memory of each host; programs name an entry by its position in this list.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stages: Vec<SharedMemory>,
    /// The program of each rank if input and output do not overlap.
    pub out_of_place: Vec<Program>,
    /// The program of each rank if input and output share memory.
    pub in_place: Vec<Program>,
}

/// The calls that a set of plans serves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Serves {
    /// The operation.
    pub collective: Collective,
    /// Number of ranks.
    pub ranks: u32,
    /// The root, where the collective has one, else 0.
    #[serde(default)]
    pub root: u32,
    /// Number of each rank's host, in the order in which hosts appear; if absent, any placement of ranks on hosts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hosts: Option<Vec<u32>>,
    /// Names of the hosts, by number, if the plans serve these hosts only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub host_names: Vec<String>,
    /// Fewest bytes, of the vector or of a block.
    #[serde(default)]
    pub from_bytes: u64,
    /// Most bytes.
    #[serde(default = "unlimited", skip_serializing_if = "is_unlimited")]
    pub to_bytes: u64,
}

const fn unlimited() -> u64 {
    u64::MAX
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde hands over references")]
const fn is_unlimited(bytes: &u64) -> bool {
    *bytes == u64::MAX
}

/// Memory that ranks of one host share: see [`crate::stage::Stage`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SharedMemory {
    /// Ranks that share the memory, ascending.
    pub members: Vec<u32>,
    /// The space whose blocks set the lengths of a stage's blocks.
    pub like: Space,
    /// The payload of each member in each round.
    pub rounds: Vec<Vec<Payload>>,
}

/// The program of a rank.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Program {
    /// Length of each scratch block.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub scratch: Vec<Like>,
    /// Position of its shared memory in the file's list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage: Option<u32>,
    /// Its lanes.
    pub lanes: Vec<Vec<Step>>,
}

/// The plans of all ranks, proved correct.
#[derive(Clone, Debug, PartialEq)]
pub struct PlanSet {
    name: String,
    serves: Serves,
    segment_bytes: u64,
    window: u32,
    /// The plans out of place, then those in place.
    plans: [Vec<Plan>; 2],
}

impl PlanSet {
    /// Checks and proves the plans of a file.
    ///
    /// # Errors
    /// The problem with the plans, in a sentence.
    pub fn new(file: PlanFile) -> Result<Self, String> {
        if file.version != VERSION {
            return Err(format!("it has version {}, and this build reads version {VERSION}", file.version));
        }
        if file.name.len() > NAME_BYTES_MAX || file.name.contains(char::is_control) {
            return Err(format!(
                "its name is longer than {NAME_BYTES_MAX} bytes, or not a single line of text"
            ));
        }
        file.serves.validate()?;
        let blocks = blocks_of(file.cut, &file.serves)?;
        bounded("segment_bytes", file.segment_bytes, 1, SEGMENT_BYTES_MAX)?;
        let is_staged = !file.stages.is_empty();
        let window_max = if is_staged { STAGED_WINDOW_MAX } else { WINDOW_MAX };
        bounded("window", u64::from(file.window), 1, u64::from(window_max))?;
        let stages = stages_of(&file, blocks)?;
        let PlanFile { name, serves, segment_bytes, window, cut, out_of_place, in_place, .. } = file;
        let mut plans = [Vec::new(), Vec::new()];
        for (placement, programs) in [(Placement::OutOfPlace, out_of_place), (Placement::InPlace, in_place)] {
            plans[placement as usize] = plans_of(&serves, cut, blocks, &stages, placement, programs)?;
        }
        let set = Self { name, serves, segment_bytes, window, plans };
        set.prove()?;
        Ok(set)
    }

    /// Makes a set of the plans that a generator makes for a choice, for calls of this range of bytes.
    ///
    /// # Errors
    /// If plans of this kind cannot be in a set: the reason in words.
    pub fn of_choice(task: &Task, choice: &Choice, from_bytes: u64, to_bytes: u64) -> Result<Self, String> {
        let task = task.clone().with_params(choice.params);
        let plans = |placement| choice.algorithm.plans(&Task { placement, ..task.clone() });
        let serves = Serves {
            collective: task.collective,
            ranks: task.world_size,
            root: task.root,
            hosts: match &task.hosts {
                Some(hosts) => Some(hosts.to_vec()),
                // Ranks on unknown hosts are taken to be on one host, the only one on which they can share memory.
                None => choice.staged_segment_bytes_max.map(|_| vec![0; task.world_size as usize]),
            },
            host_names: Vec::new(),
            from_bytes,
            to_bytes,
        };
        let run = (choice.segment_bytes as u64, choice.window as u32);
        let [outside, inside] = [Placement::OutOfPlace, Placement::InPlace].map(plans);
        Self::of_plans(choice.algorithm.name().to_owned(), serves, run, [outside, inside])
    }

    /// Makes a set of plans made by code, out of place and in place, to be run in segments of `segment_bytes` with
    /// `window` in flight.
    ///
    /// # Errors
    /// As [`PlanSet::new`].
    pub fn of_plans(
        name: String,
        serves: Serves,
        (segment_bytes, window): (u64, u32),
        plans: [Vec<Plan>; 2],
    ) -> Result<Self, String> {
        if plans
            .iter()
            .flatten()
            .any(|plan| plan.stage.as_ref().is_some_and(|stage| !stage.windows.is_empty()))
        {
            return Err("plans on symmetric buffers are made for each call and cannot be saved".to_owned());
        }
        Self::new(Self { name, serves, segment_bytes, window, plans }.to_file())
    }

    /// Returns the description of the set, for people.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the calls that the set serves.
    #[must_use]
    pub const fn serves(&self) -> &Serves {
        &self.serves
    }

    /// Returns the bytes per segment.
    #[must_use]
    pub const fn segment_bytes(&self) -> u64 {
        self.segment_bytes
    }

    /// Returns the number of segments in flight.
    #[must_use]
    pub const fn window(&self) -> u32 {
        self.window
    }

    /// Returns the plans of all ranks for a placement.
    #[must_use]
    pub fn plans(&self, placement: Placement) -> &[Plan] {
        &self.plans[placement as usize]
    }

    /// Returns whether any rank uses memory that the ranks of its host share.
    #[must_use]
    pub fn is_staged(&self) -> bool {
        self.plans.iter().flatten().any(|plan| plan.stage.is_some())
    }

    /// Returns the highest number of channels that any rank uses to another.
    #[must_use]
    pub fn channels(&self) -> u16 {
        self.plans.iter().flatten().map(|plan| plan.channels).max().unwrap_or(0)
    }

    /// Returns the same set for calls of other lengths.
    #[must_use]
    pub fn for_bytes(mut self, from_bytes: u64, to_bytes: u64) -> Self {
        (self.serves.from_bytes, self.serves.to_bytes) = (from_bytes, to_bytes);
        self
    }

    /// Returns the same set for hosts with these names only, by number.
    ///
    /// # Errors
    /// If the number of names does not match.
    pub fn on_hosts(mut self, names: &[&str]) -> Result<Self, String> {
        self.serves.host_names = names.iter().map(|name| (*name).to_owned()).collect();
        self.serves.validate().map(|()| self)
    }

    /// Returns the set as the content of a file.
    #[must_use]
    pub fn to_file(&self) -> PlanFile {
        let mut stages: Vec<SharedMemory> = Vec::new();
        let mut program = |plan: &Plan| Program {
            scratch: plan.scratch.to_vec(),
            stage: plan.stage.as_ref().map(|stage| {
                let own = SharedMemory {
                    members: stage.members.to_vec(),
                    like: stage.like,
                    rounds: stage.rounds.iter().map(|round| round.to_vec()).collect(),
                };
                stages.iter().position(|known| *known == own).unwrap_or_else(|| {
                    stages.push(own);
                    stages.len() - 1
                }) as u32
            }),
            lanes: plan.lanes.iter().map(|lane| lane.to_vec()).collect(),
        };
        let [out_of_place, in_place] =
            self.plans.each_ref().map(|plans| plans.iter().map(&mut program).collect());
        PlanFile {
            version: VERSION,
            name: self.name.clone(),
            serves: self.serves.clone(),
            segment_bytes: self.segment_bytes,
            window: self.window,
            cut: self.plans[0].first().map_or(Cut::PerRank, |plan| plan.cut),
            stages,
            out_of_place,
            in_place,
        }
    }

    /// Proves the plans of each placement, and mixtures of both, since ranks may mix them. Each bit of a rank's number
    /// makes two mixtures, so any two ranks meet in every combination of placements.
    fn prove(&self) -> Result<(), String> {
        let ranks = self.plans[0].len();
        let prove = |plans: &[Plan], what: &str, counts: &[usize], options: &Options| {
            counts.iter().try_for_each(|count| {
                let shapes: Vec<Shape> = plans.iter().map(|plan| shape(plan, *count)).collect();
                check(plans, &shapes, options)
                    .map(drop)
                    .map_err(|violation| format!("its plans are wrong {what}: {violation}"))
            })
        };
        let counts = self.counts();
        for (plans, what) in self.plans.iter().zip(["out of place", "in place"]) {
            prove(plans, what, &counts, &Options::default())?;
        }
        for bit in 0..ranks.next_power_of_two().ilog2() {
            for odd in 0..2 {
                let mixture: Vec<Plan> =
                    (0..ranks).map(|rank| self.plans[((rank >> bit) + odd) % 2][rank].clone()).collect();
                // Empty messages are skipped at both ends, so plans that go well with all blocks go well without some.
                prove(&mixture, "with some ranks in place", &counts[..1], &Options::quick())?;
            }
        }
        self.bounded_memory()
    }

    /// Returns the lengths with which the plans are checked: one that gives every block elements, unequally, and one
    /// that leaves some empty.
    fn counts(&self) -> [usize; 2] {
        match self.plans[0].first().map(|plan| plan.cut) {
            Some(Cut::Vector { parts }) if self.serves.collective != Collective::Barrier => {
                [2 * parts as usize + 1, 1]
            }
            Some(Cut::PerRank) => [2, 0],
            _ => [0, 0],
        }
    }

    /// Checks that segments take a bounded amount of scratch, and that payloads fit into shared memory.
    fn bounded_memory(&self) -> Result<(), String> {
        // A segment has an element at least, whatever its type.
        let elements = self.segment_bytes.max(ELEMENT_BYTES_MAX) as usize;
        for plan in self.plans.iter().flatten() {
            let layout = Layout::new(plan, shape(plan, elements), elements);
            if let Some(stage) = &plan.stage
                && stage.longest(&layout).iter().sum::<usize>() > PAYLOAD_BYTES_MAX
            {
                return Err(format!(
                    "rank {} publishes more than {PAYLOAD_BYTES_MAX} bytes at a time with segments of {elements} bytes",
                    plan.rank
                ));
            }
            let blocks = (plan.scratch.len() as u64).saturating_mul(SCRATCH_BLOCK_BYTES);
            let staging = blocks.saturating_add(layout.scratch_elements() as u64);
            let staging = staging.saturating_mul(u64::from(self.window));
            if staging > STAGING_BYTES_MAX {
                return Err(format!(
                    "rank {} needs {staging} bytes of staging, but at most {STAGING_BYTES_MAX} are available",
                    plan.rank
                ));
            }
        }
        Ok(())
    }
}

fn shape(plan: &Plan, count: usize) -> Shape {
    match plan.cut {
        Cut::Vector { .. } | Cut::Shards { .. } => Shape::Vector { count },
        Cut::PerRank => Shape::Blocks { count },
    }
}

fn bounded(what: &str, value: u64, least: u64, most: u64) -> Result<(), String> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    Err(format!("{what} is {value}, but must be {least} to {most}"))
}

impl Serves {
    fn validate(&self) -> Result<(), String> {
        bounded("ranks", u64::from(self.ranks), 1, u64::from(RANKS_MAX))?;
        let root_max = if self.collective.is_rooted() { self.ranks - 1 } else { 0 };
        bounded("root", u64::from(self.root), 0, u64::from(root_max))?;
        if self.from_bytes > self.to_bytes {
            return Err(format!(
                "it is for {} to {} bytes, which is an empty range",
                self.from_bytes, self.to_bytes
            ));
        }
        let named = self.host_names.len();
        let count =
            self.hosts.as_ref().and_then(|hosts| hosts.iter().max()).map_or(0, |most| *most as usize + 1);
        let is_long = |name: &String| name.len() > NAME_BYTES_MAX || name.contains(char::is_control);
        if named > 0 && (named != count || self.host_names.iter().any(is_long)) {
            return Err(format!(
                "it names {named} hosts, but its ranks are on {count}; or a name is not valid"
            ));
        }
        let Some(hosts) = &self.hosts else { return Ok(()) };
        if hosts.len() != self.ranks as usize {
            return Err(format!("it has hosts of {} ranks, but there are {}", hosts.len(), self.ranks));
        }
        let mut next = 0;
        for host in hosts {
            if *host > next {
                return Err(format!(
                    "host {host} appears before host {next}: hosts are numbered from 0 in order"
                ));
            }
            next = next.max(host + 1);
        }
        Ok(())
    }

    /// Checks whether ranks on these hosts, numbered in the order in which they appear, are served, whatever the call.
    /// `names` are the names of the hosts, if known.
    ///
    /// # Errors
    /// The reason, in words.
    pub fn fits(&self, hosts: &[u32], names: Option<&[&str]>) -> Result<(), String> {
        if hosts.len() != self.ranks as usize {
            return Err(format!("it is for {} ranks, but there are {}", self.ranks, hosts.len()));
        }
        match &self.hosts {
            Some(wanted) if wanted != hosts => {
                Err(format!("it is for ranks on hosts {wanted:?}, but these are on {hosts:?}"))
            }
            _ => match names {
                Some(names) if !self.host_names.is_empty() && self.host_names != names => Err(format!(
                    "it was made for hosts {}, in this order, but these are {}",
                    self.host_names.join(", "),
                    names.join(", ")
                )),
                _ => Ok(()),
            },
        }
    }

    /// Checks whether a call of this many bytes (of the vector, or of a block) is served.
    ///
    /// # Errors
    /// The reason, in words.
    pub fn serves(&self, collective: Collective, root: u32, bytes: u64) -> Result<(), String> {
        if collective != self.collective {
            return Err(format!("it is for {}", self.collective));
        }
        if collective.is_rooted() && root != self.root {
            return Err(format!("it is for root {}, but this is root {root}", self.root));
        }
        if !(self.from_bytes..=self.to_bytes).contains(&bytes) {
            let most =
                if is_unlimited(&self.to_bytes) { "more".to_owned() } else { self.to_bytes.to_string() };
            return Err(format!("it is for {} to {most} bytes, but this is {bytes}", self.from_bytes));
        }
        Ok(())
    }
}
