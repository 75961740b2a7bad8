//! Rendezvous of the hosts of a group: backends that generate one image together, each on its own thread.
//!
//! Each rank has its own part of the tokens and pixels, and gets the parts of other ranks only through collectives. The
//! hosts share the memory of the process, so ranks exchange views or device addresses.

use std::any::Any;
use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::error::{Error, ErrorKind, Result};

/// Factor on the timeout if other ranks may be loading weights.
const PATIENCE: u32 = 60;

/// Default timeout of a rank that waits in a collective.
pub(super) const LIMIT: Duration = Duration::from_secs(10);

/// The failure signal of the devices, polled by waiting hosts if the devices of a group wait for each other too.
pub(super) trait Alarm: Send + Sync {
    /// Returns the error that ended the collectives on a device, and the rank that caused it.
    fn error(&self) -> Option<(usize, Error)>;
    /// Ends the collectives of all devices.
    fn sound(&self);
}

/// Polling interval of a waiting host.
const LISTEN: Duration = Duration::from_millis(50);

/// The place of a backend in its group.
pub struct Member {
    group: Arc<Group>,
    rank: usize,
}

struct Group {
    world: usize,
    /// The timeout of a rank that waits in a collective.
    limit: Duration,
    state: Mutex<State>,
    changed: Condvar,
    /// `None` if only hosts wait.
    alarm: Option<Arc<dyn Alarm>>,
}

struct State {
    /// Parcels that were sent and not received yet: by receiver, then sender, in the order of collectives.
    parcels: Vec<Vec<VecDeque<Parcel>>>,
    /// Ranks that dropped all their backends.
    gone: Vec<bool>,
    /// The error that ended the collectives, and the rank that caused it.
    failure: Option<(usize, Error)>,
}

struct Parcel {
    op: &'static str,
    content: Box<dyn Any + Send>,
}

impl State {
    fn new(world: usize) -> Self {
        Self { parcels: no_parcels(world), gone: vec![false; world], failure: None }
    }
}

fn no_parcels(world: usize) -> Vec<Vec<VecDeque<Parcel>>> {
    (0..world).map(|_| (0..world).map(|_| VecDeque::new()).collect()).collect()
}

impl Member {
    /// Returns the members of a new group, in the order of ranks.
    pub(super) fn group(world: usize, limit: Duration, alarm: Option<Arc<dyn Alarm>>) -> impl Iterator<Item = Self> {
        let state = Mutex::new(State::new(world));
        let group = Arc::new(Group { world, limit, state, changed: Condvar::new(), alarm });
        (0..world).map(move |rank| Self { group: Arc::clone(&group), rank })
    }

    pub(super) fn rank(&self) -> usize {
        self.rank
    }

    pub(super) fn world(&self) -> usize {
        self.group.world
    }

    pub(super) fn is(&self, other: &Self) -> bool {
        self.rank == other.rank && Arc::ptr_eq(&self.group, &other.group)
    }

    /// Sends each rank its part of `sent` and waits for the parts from all ranks, in the order of ranks.
    ///
    /// Errors if another rank fails, is gone, exceeds the timeout, or is in another collective.
    pub(super) fn exchange<T: Send + 'static>(&self, op: &'static str, sent: Vec<T>) -> Result<Vec<T>> {
        self.exchange_within(op, sent, self.group.limit)
    }

    /// As [`Member::exchange`], with a longer timeout because other ranks may be loading weights first.
    pub(super) fn exchange_patiently<T: Send + 'static>(&self, op: &'static str, sent: Vec<T>) -> Result<Vec<T>> {
        self.exchange_within(op, sent, self.group.limit.saturating_mul(PATIENCE))
    }

    fn exchange_within<T: Send + 'static>(&self, op: &'static str, sent: Vec<T>, limit: Duration) -> Result<Vec<T>> {
        let start = Instant::now();
        let mut state = self.group.state.lock();
        self.check_state(&mut state, op)?;
        for (to, content) in sent.into_iter().enumerate() {
            state.parcels[to][self.rank].push_back(Parcel { op, content: Box::new(content) });
        }
        self.group.changed.notify_all();
        while let Some(missing) = (0..self.group.world).find(|&from| state.parcels[self.rank][from].is_empty()) {
            self.check_state(&mut state, op)?;
            let waited = start.elapsed();
            let late = || format!("rank {missing} timed out after {limit:?} before {}", self.waits_in(op));
            if state.gone[missing] {
                self.fail(&mut state, missing, format!("rank {missing} is gone before {}", self.waits_in(op)));
            } else if waited >= limit {
                self.fail(&mut state, missing, late());
            } else {
                let most = if self.group.alarm.is_some() { LISTEN } else { limit };
                self.group.changed.wait_for(&mut state, most.min(limit - waited));
            }
        }
        let parcels: Vec<_> = state.parcels[self.rank].iter_mut().filter_map(VecDeque::pop_front).collect();
        if let Some((from, parcel)) = parcels.iter().enumerate().find(|(_, parcel)| parcel.op != op) {
            self.fail(&mut state, from, format!("rank {from} is in `{}`, not in {}", parcel.op, self.waits_in(op)));
            self.check_state(&mut state, op)?;
        }
        let content = |parcel: Parcel| *parcel.content.downcast().expect("a collective has values of one type");
        Ok(parcels.into_iter().map(content).collect())
    }

    fn waits_in(&self, op: &str) -> String {
        format!("`{op}`, where rank {} waits for it", self.rank)
    }

    fn fail(&self, state: &mut State, rank: usize, what: String) {
        self.end(state, rank, Error::new(what));
    }

    fn end(&self, state: &mut State, rank: usize, cause: Error) {
        state.failure.get_or_insert((rank, cause));
        self.group.alarm.iter().for_each(|alarm| alarm.sound());
        self.group.changed.notify_all();
    }

    /// Errors if the collectives were ended.
    pub(super) fn check(&self, op: &str) -> Result<()> {
        self.check_state(&mut self.group.state.lock(), op)
    }

    fn check_state(&self, state: &mut State, op: &str) -> Result<()> {
        if state.failure.is_none()
            && let Some((rank, cause)) = self.group.alarm.as_ref().and_then(|alarm| alarm.error())
        {
            self.end(state, rank, cause);
        }
        match &state.failure {
            None => Ok(()),
            Some((_, cause)) if cause.kind() == ErrorKind::Cancelled => Err(cause.clone()),
            Some((rank, cause)) => {
                let what = format!("rank {} stops because of rank {rank}: {}", self.rank, cause.what());
                Err(Error::new(what).at(format!("op `{op}`")))
            }
        }
    }

    pub(super) fn abort(&self, cause: &Error) {
        self.end(&mut self.group.state.lock(), self.rank, cause.clone());
    }

    /// Returns `true` if the collectives were ended.
    pub(super) fn has_ended(&self) -> bool {
        self.group.state.lock().failure.is_some()
    }

    /// Errors if a rank is gone.
    pub(super) fn restore(&self) -> Result<()> {
        let mut state = self.group.state.lock();
        if let Some(rank) = state.gone.iter().position(|gone| *gone) {
            return Err(
                Error::new(format!("rank {rank} of {} is gone", self.group.world)).hint("create the group again")
            );
        }
        state.failure = None;
        let forgotten = std::mem::replace(&mut state.parcels, no_parcels(self.group.world));
        drop(state);
        drop(forgotten);
        Ok(())
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.group.state.lock().gone[self.rank] = true;
        self.group.changed.notify_all();
    }
}

impl fmt::Debug for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} of {}", self.rank, self.group.world)
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::{Alarm, Arc, Duration, Error, ErrorKind, Instant, Member, Mutex, Result};

    const LIMIT: Duration = Duration::from_millis(100);
    /// Far longer than any step that doesn't wait for this limit takes, also on a busy machine.
    const LONG: Duration = Duration::from_secs(60);

    /// Returns the results of `work` on each rank of a group.
    fn on_each<T: Send>(world: usize, limit: Duration, work: impl Fn(Member) -> T + Sync) -> Vec<T> {
        let members: Vec<_> = Member::group(world, limit, None).collect();
        thread::scope(|scope| {
            let threads: Vec<_> = members.into_iter().map(|member| scope.spawn(|| work(member))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    fn texts(results: Vec<Result<Vec<usize>>>) -> Vec<String> {
        results.into_iter().map(|result| result.map_or_else(|error| error.to_string(), |_| String::new())).collect()
    }

    #[test]
    fn every_rank_gets_what_every_rank_has_for_it_however_far_one_is_ahead() {
        let all = on_each(3, LONG, |member| {
            let round = |i: usize| member.exchange("x", (0..3).map(|to| 100 * i + 10 * member.rank + to).collect());
            (0..50).map(round).collect::<Result<Vec<_>>>().unwrap()
        });
        for (rank, rounds) in all.into_iter().enumerate() {
            for (i, received) in rounds.into_iter().enumerate() {
                assert_eq!(received, [0, 1, 2].map(|from| 100 * i + 10 * from + rank));
            }
        }
    }

    #[test]
    fn a_rank_that_fails_ends_all_others_at_once_with_its_cause() {
        let start = Instant::now();
        let texts = texts(on_each(4, LONG, |member| {
            if member.rank == 2 {
                member.abort(&Error::new("out of memory"));
            }
            member.exchange("halo_rows", vec![0; 4])
        }));
        assert!(start.elapsed() < LONG);
        for (rank, text) in texts.iter().enumerate() {
            assert!(text.contains(&format!("rank {rank} ")) && text.contains("rank 2: out of memory\n"), "{text}");
            assert!(text.contains("op `halo_rows`"), "{text}");
        }
    }

    #[test]
    fn a_rank_that_is_dropped_or_in_another_collective_or_late_is_named() {
        let start = Instant::now();
        let gone =
            texts(on_each(
                3,
                LONG,
                |member| if member.rank == 1 { Ok(vec![]) } else { member.exchange("x", vec![0; 3]) },
            ));
        assert!(start.elapsed() < LONG);
        for text in [&gone[0], &gone[2]] {
            assert!(text.contains("rank 1 ") && text.contains("`x`"), "{text}");
        }
        let other = texts(on_each(2, LONG, |member| member.exchange(["x", "y"][member.rank], vec![0; 2])));
        // Either rank may notice it first.
        let told = [["rank 1 is in `y`", "`x`", "rank 0 "], ["rank 0 is in `x`", "`y`", "rank 1 "]];
        assert!(
            other.iter().any(|text| told.iter().any(|told| told.iter().all(|part| text.contains(part)))),
            "{other:?}"
        );
        let late = texts(on_each(3, LIMIT, |member| {
            if member.rank == 0 {
                thread::sleep(10 * LIMIT);
            }
            member.exchange("x", vec![0; 3])
        }));
        for (rank, text) in late.iter().enumerate() {
            assert!(text.contains(&format!("rank {rank} ")) && text.contains("rank 0: rank 0 timed out"), "{text}");
        }
    }

    #[derive(Default)]
    struct Bell(Mutex<(Option<usize>, bool)>);

    impl Alarm for Bell {
        fn error(&self) -> Option<(usize, Error)> {
            self.0.lock().0.map(|rank| (rank, Error::new("the device is stuck")))
        }

        fn sound(&self) {
            self.0.lock().1 = true;
        }
    }

    #[test]
    fn what_ends_devices_ends_hosts_that_wait_and_the_other_way() {
        let bell = Arc::new(Bell::default());
        let members: Vec<_> = Member::group(2, LONG, Some(Arc::clone(&bell) as _)).collect();
        let start = Instant::now();
        let error = thread::scope(|scope| {
            let waiting = scope.spawn(|| members[0].exchange_patiently("x", vec![0; 2]));
            thread::sleep(LIMIT);
            bell.0.lock().0 = Some(1);
            waiting.join().unwrap().unwrap_err().to_string()
        });
        assert!(start.elapsed() < LONG && error.contains("rank 1: the device is stuck"), "{error}");
        assert!(bell.0.lock().1 && members[1].has_ended() && members[1].check("y").is_err());
    }

    #[test]
    fn one_waits_longer_for_ranks_that_load() {
        let results = on_each(2, LIMIT, |member| {
            if member.rank == 0 {
                thread::sleep(2 * LIMIT);
            }
            member.exchange_patiently("x", vec![member.rank; 2])
        });
        assert!(results.into_iter().all(|result| result.unwrap() == [0, 1]));
    }

    #[test]
    fn a_group_that_was_ended_can_be_restored_while_all_ranks_are_there() {
        let mut members: Vec<_> = Member::group(2, LIMIT, None).collect();
        members[0].abort(&Error::cancelled());
        let error = members[1].exchange("x", vec![0; 2]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Cancelled);
        members[1].restore().unwrap();
        let exchanged = thread::scope(|scope| {
            let other = scope.spawn(|| members[1].exchange("x", vec![1; 2]));
            members[0].exchange("x", vec![0; 2]).and(other.join().unwrap())
        });
        assert_eq!(exchanged.unwrap(), [0, 1]);
        members.pop();
        assert!(members[0].restore().unwrap_err().to_string().contains("rank 1 of 2"));
    }
}
