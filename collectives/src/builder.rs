//! Writes plans, lane after lane, and sets the fences that they need.
//!
//! A fence waits for *all* earlier sends of its lane. On a receive that directly follows a send of the same round, a
//! fence would make every rank of a ring wait for a receive that no rank posts. So when a step overwrites blocks that
//! an earlier send may still be reading, the fence goes to the start of the latest run of sends between the two: that
//! run then waits for the rounds before it, never for itself.

use crate::generator::Algorithm;
use crate::memory::Memory;
use crate::plan::{Action, Blocks, Channel, Cut, Lane, Like, Plan, Space, Step, StepRef};
use crate::stage::{Members, Payload, Stage};
use crate::task::Task;
use crate::window::Windows;

/// The most steps of a lane: [`StepRef`] names a step by 16 bits.
pub(crate) const LANE_STEPS_MAX: u32 = 1 << 16;

/// Builds the plan of one rank. Steps go to the current lane; [`lane`](Self::lane) starts another.
#[derive(Debug)]
pub struct PlanBuilder {
    algorithm: Algorithm,
    memory: Memory,
    scratch: Vec<Like>,
    lanes: Vec<Vec<Step>>,
    /// Sends of the current lane that no fence has waited for: step index and the blocks that they read.
    unfenced: Vec<(usize, Blocks)>,
    /// Where the latest run of consecutive sends of the current lane begins.
    latest_run: Option<usize>,
    start_lane: bool,
    after: Option<StepRef>,
    channel: u16,
    channels: u16,
    stage: Option<StageBuilder>,
}

/// The stage's table of rounds while it is built.
#[derive(Debug)]
struct StageBuilder {
    members: Vec<u32>,
    me: usize,
    like: Space,
    rounds: Vec<Box<[Payload]>>,
    windows: Windows,
    /// The lane that holds all steps on stages.
    lane: Option<usize>,
}

impl PlanBuilder {
    /// Starts an empty plan of `rank`.
    #[must_use]
    pub fn new(task: &Task, algorithm: Algorithm, rank: u32, cut: Cut) -> Self {
        assert!(rank < task.world_size && task.root < task.world_size, "rank and root lie in the world");
        let memory = Memory {
            collective: task.collective,
            rank,
            world_size: task.world_size,
            root: task.root,
            placement: task.placement,
            cut,
        };
        Self {
            algorithm,
            memory,
            scratch: Vec::new(),
            lanes: Vec::new(),
            unfenced: Vec::new(),
            latest_run: None,
            start_lane: true,
            after: None,
            channel: 0,
            channels: 0,
            stage: None,
        }
    }

    /// Returns the rank whose plan this is.
    #[must_use]
    pub fn rank(&self) -> u32 {
        self.memory.rank
    }

    /// Starts a lane, which is created with its first step. Its channels have index `channel`.
    pub fn lane(&mut self, channel: u16) -> &mut Self {
        self.start_lane = true;
        self.channel = channel;
        self
    }

    /// Adds a scratch block.
    pub fn scratch(&mut self, like: Like) -> Blocks {
        let (blocks, available) = match like {
            Like::Input(block) => (block, self.memory.input_blocks()),
            Like::Output(block) => (block, self.memory.output_blocks()),
        };
        assert!(blocks < available, "scratch like {like:?}, of {available} blocks");
        self.scratch.push(like);
        Blocks::one(Space::Scratch, self.scratch.len() as u32 - 1)
    }

    /// Adds consecutive scratch blocks, at least one.
    pub fn scratch_range(&mut self, like: impl IntoIterator<Item = Like>) -> Blocks {
        let first = self.scratch.len() as u32;
        for like in like {
            self.scratch(like);
        }
        Blocks::range(Space::Scratch, first, self.scratch.len() as u32 - first)
    }

    /// Adds a scratch block as long as block `block` of the rank's own contribution; see [`Task::own`].
    pub(crate) fn scratch_like_own(&mut self, task: &Task, block: u32) -> Blocks {
        self.scratch(match task.own() {
            Space::Input => Like::Input(block),
            _ => Like::Output(block),
        })
    }

    /// Makes the next step wait for `step` of another lane.
    pub fn after(&mut self, step: StepRef) -> &mut Self {
        self.after = Some(step);
        self
    }

    /// Returns the step added last.
    ///
    /// # Panics
    /// If the plan has no steps.
    #[must_use]
    pub fn last(&self) -> StepRef {
        let lane = self.lanes.len() - 1;
        StepRef { lane: lane as u16, step: (self.lanes[lane].len() - 1) as u16 }
    }

    /// Sends `src` to `peer`.
    pub fn send(&mut self, peer: u32, src: Blocks) {
        let to = self.channel_to(peer);
        self.push(Action::Send { to, src });
    }

    /// Receives `dst` from `peer`.
    pub fn recv(&mut self, peer: u32, dst: Blocks) {
        let from = self.channel_to(peer);
        self.push(Action::Recv { from, dst });
    }

    /// Receives from `peer` and reduces: `dst = with op incoming`.
    pub fn recv_reduce(&mut self, peer: u32, with: Blocks, dst: Blocks) {
        let from = self.channel_to(peer);
        self.push(Action::RecvReduce { from, with, dst });
    }

    /// Copies: `dst = src`.
    pub fn copy(&mut self, src: Blocks, dst: Blocks) {
        self.push(Action::Copy { src, dst });
    }

    /// Reduces: `dst = a op b`.
    pub fn reduce(&mut self, a: Blocks, b: Blocks, dst: Blocks) {
        self.push(Action::Reduce { a, b, dst });
    }

    /// Sends an empty message to `peer`.
    pub fn signal(&mut self, peer: u32) {
        let to = self.channel_to(peer);
        self.push(Action::Signal { to });
    }

    /// Waits for an empty message from `peer`.
    pub fn wait_signal(&mut self, peer: u32) {
        let from = self.channel_to(peer);
        self.push(Action::WaitSignal { from });
    }

    /// Shares memory with `members`, the ranks in ascending order, this one included. Block i of a stage is as long as
    /// block i of `like`: input or output.
    pub fn stage(&mut self, members: impl Into<Vec<u32>>, like: Space) {
        let members = members.into();
        assert!(members.is_sorted() && members.len() <= usize::from(u16::MAX), "members in order");
        assert!(matches!(like, Space::Input | Space::Output), "stages are like input or output");
        let me = members.binary_search(&self.memory.rank).expect("this rank is a member");
        let (rounds, windows) = (Vec::new(), Windows::default());
        self.stage = Some(StageBuilder { members, me, like, rounds, windows, lane: None });
    }

    /// Lets the members of the stage reach into each other's buffers, too.
    pub fn windows(&mut self, windows: Windows) {
        self.stage.as_mut().expect("there is a stage").windows = windows;
    }

    /// Starts the next round. Member m publishes the payload `payload(m)`, and this rank takes its own from `src`. No
    /// other rank reads this rank's blocks `except`, given as (first, count); the count may be 0.
    pub fn publish(
        &mut self,
        payload: impl Fn(u16) -> Payload,
        src: [Option<Blocks>; 2],
        except: (u32, u32),
    ) {
        let stage = self.stage.as_mut().expect("there is a stage");
        let round: Box<[Payload]> = (0..stage.members.len() as u16).map(payload).collect();
        let own = round[stage.me].runs.map(|run| run.map(|run| run.count));
        assert_eq!(own, src.map(|src| src.map(|src| src.count)), "as many blocks as it says to others");
        let (first, count) = except;
        let except = (count > 0).then(|| Blocks::range(Space::Stage(stage.me as u16), first, count));
        assert!(
            except.is_none() || round[stage.me].run_of(first, count).is_some(),
            "published but for these"
        );
        stage.rounds.push(round);
        self.push(Action::Publish { src, except });
    }

    /// Waits for the payloads of these members in the current round.
    pub fn await_members(&mut self, of: Members) {
        self.push(Action::Await { of });
    }

    /// Reduces `count` blocks of these members, from number `first` on, into `dst`.
    pub fn fold(&mut self, of: Members, (first, count): (u32, u32), own: Option<Blocks>, dst: Blocks) {
        self.push(Action::Fold { of, first, count, own, dst });
    }

    /// Reduces `count` input blocks of the members `of`, from number `first` on, into the outputs of the members `to`,
    /// from number `at` on.
    pub fn spread(&mut self, of: Members, (first, count): (u32, u32), to: Members, at: u32) {
        self.push(Action::Spread { of, first, count, to, at });
    }

    /// Returns the finished plan.
    #[must_use]
    pub fn finish(self) -> Plan {
        let memory = self.memory;
        Plan {
            collective: memory.collective,
            algorithm: self.algorithm.name(),
            rank: memory.rank,
            world_size: memory.world_size,
            root: memory.root,
            placement: memory.placement,
            cut: memory.cut,
            scratch: self.scratch.into(),
            stage: self.stage.map(|stage| Stage {
                members: stage.members.into(),
                like: stage.like,
                rounds: stage.rounds.into(),
                windows: stage.windows,
            }),
            lanes: self.lanes.into_iter().map(Lane::from).collect(),
            channels: self.channels,
        }
    }

    fn channel_to(&mut self, peer: u32) -> Channel {
        assert!(peer < self.memory.world_size && peer != self.memory.rank, "peer {peer} is another rank");
        self.channels = self.channels.max(self.channel + 1);
        Channel { peer, index: self.channel }
    }

    fn push(&mut self, action: Action) {
        if self.start_lane {
            self.start_lane = false;
            self.lanes.push(Vec::new());
            self.unfenced.clear();
            self.latest_run = None;
        }
        for blocks in action.reads().into_iter().chain([action.writes()]).flatten() {
            self.validate(blocks);
        }
        let lane = self.lanes.len() - 1;
        let index = self.lanes[lane].len();
        assert!(index < LANE_STEPS_MAX as usize, "a lane has at most {LANE_STEPS_MAX} steps");
        if let (true, Some(stage)) = (action.is_staged(), &mut self.stage) {
            assert!(*stage.lane.get_or_insert(lane) == lane, "all steps of stages are in one lane");
        }
        let dst = action.writes();
        let is_writable = |dst: Blocks| matches!(dst.space, Space::Output | Space::Scratch);
        assert!(dst.is_none_or(is_writable), "a plan writes its output and scratch");
        let dst = dst.map(|dst| self.memory.physical(dst));
        // A step ends the life of the blocks that it writes; a `Publish` ends that of the blocks read in the round
        // before.
        let is_lost = |src: &Blocks| match action {
            Action::Publish { .. } => src.space.is_stage(),
            _ => dst.is_some_and(|dst| src.overlaps(&dst)),
        };
        let mut fence = false;
        let last = self.unfenced.iter().rev().find(|(_, src)| is_lost(src)).map(|(step, _)| *step);
        if let Some(last) = last {
            let at = self.latest_run.filter(|run| *run > last);
            match at {
                Some(run) => self.lanes[lane][run].fence = true,
                None => fence = true,
            }
            let waited = at.unwrap_or(index);
            self.unfenced.retain(|(step, _)| *step >= waited);
        }
        if let Action::Send { src, .. } = action {
            let follows_send =
                matches!(self.lanes[lane].last(), Some(Step { action: Action::Send { .. }, .. }));
            if !follows_send {
                self.latest_run = Some(index);
            }
            if self.memory.may_be_written(src.space) {
                self.unfenced.push((index, self.memory.physical(src)));
            }
        }
        let after = self.after.take();
        assert!(after.is_none_or(|after| usize::from(after.lane) != lane), "a lane is in order by itself");
        self.lanes[lane].push(Step { action, after, fence });
    }

    fn validate(&self, blocks: Blocks) {
        let available = match blocks.space {
            Space::Input => self.memory.input_blocks(),
            Space::Output => self.memory.output_blocks(),
            Space::Scratch => self.scratch.len() as u32,
            Space::Stage(member) => {
                let stage = self.stage.as_ref().expect("there is a stage");
                let payload = stage.rounds.last().map(|round| round[usize::from(member)]);
                let run = payload.and_then(|payload| payload.run_of(blocks.first, blocks.count));
                assert!(run.is_some(), "{blocks:?} is not in this round's {payload:?}");
                return;
            }
            Space::Window(_) => self.memory.contribution_blocks(),
        };
        assert!(
            blocks.count > 0 && blocks.end() <= available,
            "{blocks:?} of {available} on rank {} of {:?} by {}",
            self.memory.rank,
            self.memory.collective,
            self.algorithm,
        );
    }
}
