//! The order of waiting jobs, and the batch that a device generates next: decided from the waiting jobs alone, without
//! devices or locks.
//!
//! Keys take turns by the cost of their images, so busy keys get equal shares, and so do the users of a key. The tag of
//! a key is its virtual finish time: the total cost served to the key, or the tag of the job that was served last, if
//! that is greater. The key with the smallest tag is next. Each user's jobs are served oldest first. Jobs that suit the
//! next one join its batch, but no job is overtaken by later ones more than twice.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::job::{JobId, Owner, Priority};

/// A job may overtake others only if it arrived within this time after the head of its batch.
const NEAR: Duration = Duration::from_secs(2);
/// Max times that a waiting job may be overtaken.
const MAX_PASSED: u8 = 2;

/// A waiting job. `S` is the shape of its images.
#[derive(Debug, Clone)]
pub(super) struct Waiting<S> {
    pub(super) id: JobId,
    pub(super) owner: Owner,
    pub(super) priority: Priority,
    pub(super) deadline: Option<Instant>,
    /// Cost of an image.
    pub(super) cost: u64,
    /// Number of images, and of those that no device has started.
    pub(super) count: usize,
    pub(super) images: usize,
    /// `true` if the job can be combined with others.
    pub(super) combines: bool,
    /// Number of the model.
    pub(super) model: usize,
    /// Images of one model and of equal shapes can form a batch.
    pub(super) shape: S,
    /// Max images of a batch that includes the job.
    pub(super) max_together: usize,
    /// Max time that a batch may take.
    pub(super) max_latency: Option<Duration>,
    /// Time for which the job waits for others that suit it.
    pub(super) window: Duration,
    pub(super) since: Instant,
    /// Number of times that the job was overtaken.
    pub(super) passed: u8,
}

impl<S> Waiting<S> {
    fn total(&self) -> u64 {
        self.cost.saturating_mul(self.images as u64)
    }
}

/// The capabilities of a device.
pub(super) struct Fits<'a, S> {
    /// Returns `true` if the device can start the job now.
    pub(super) starts: &'a dyn Fn(&Waiting<S>) -> bool,
    /// Returns the estimated seconds of an image, if known.
    pub(super) seconds: &'a dyn Fn(&Waiting<S>) -> Option<f64>,
    /// `true` if jobs may wait for others that suit them.
    pub(super) waits: bool,
}

/// A decision about a device.
#[derive(Debug, PartialEq)]
pub(super) enum Next {
    /// The device generates these jobs in one batch, and they overtake others. Of the first job it takes as many images
    /// as a batch may have.
    Batch {
        jobs: Vec<JobId>,
        passed: Vec<JobId>,
    },
    /// The next job waits this long for others that suit it.
    Wait(Duration),
    Nothing,
}

/// The jobs that are not over, and the shares of their owners.
#[derive(Debug)]
pub(super) struct Queue<S> {
    /// In order of arrival.
    jobs: Vec<Waiting<S>>,
    shares: Shares,
}

/// The total cost served to each name, as far as it still matters.
#[derive(Debug, Default, Clone)]
struct Shares {
    /// The tag of the job that was served last, which is the min tag of a newcomer.
    least: u64,
    served: HashMap<Arc<str>, (u64, Shares)>,
}

impl Shares {
    fn tag(&self, name: &str) -> u64 {
        self.served.get(name).map_or(self.least, |(served, _)| self.least.max(*served))
    }

    /// Returns the shares of a key's users.
    fn users(&mut self, key: &Arc<str>) -> &mut Self {
        let least = self.least;
        &mut self.served.entry(Arc::clone(key)).or_insert_with(|| (least, Self::default())).1
    }

    /// Charges a cost to a name with this tag.
    fn set(&mut self, name: &Arc<str>, tag: u64, cost: u64) {
        self.least = self.least.max(tag);
        self.users(name);
        if let Some((served, _)) = self.served.get_mut(name) {
            *served = tag.saturating_add(cost);
        }
    }

    fn charge(&mut self, Owner { key, user }: &Owner, cost: u64) {
        self.set(key, self.tag(key), cost);
        let users = self.users(key);
        users.set(user, users.tag(user), cost);
    }

    fn refund(&mut self, Owner { key, user }: &Owner, cost: u64) {
        if let Some((served, users)) = self.served.get_mut(key) {
            *served = served.saturating_sub(cost);
            users.served.entry(Arc::clone(user)).and_modify(|(served, _)| *served = served.saturating_sub(cost));
        }
    }
}

impl<S> Default for Queue<S> {
    fn default() -> Self {
        Self { jobs: Vec::new(), shares: Shares::default() }
    }
}

impl<S> Queue<S> {
    /// Adds a job. Later jobs have greater ids.
    pub(super) fn push(&mut self, job: Waiting<S>) {
        self.jobs.push(job);
    }

    fn place(&self, id: JobId) -> Option<usize> {
        self.jobs.binary_search_by_key(&id, |job| job.id).ok()
    }

    pub(super) fn get_mut(&mut self, id: JobId) -> Option<&mut Waiting<S>> {
        self.place(id).map(|place| &mut self.jobs[place])
    }

    /// Removes a job that is over.
    pub(super) fn remove(&mut self, id: JobId) {
        if let Some(place) = self.place(id) {
            let Owner { key, .. } = self.jobs.remove(place).owner;
            self.forget(&key);
        }
    }

    /// Takes images of a job, and charges their cost to its owner.
    pub(super) fn take(&mut self, id: JobId, images: usize) {
        let Some(place) = self.place(id) else { return };
        let job = &mut self.jobs[place];
        job.images -= images;
        self.shares.charge(&job.owner, job.cost.saturating_mul(images as u64));
        if job.images == 0 {
            let key = Arc::clone(&job.owner.key);
            self.forget(&key);
        }
    }

    /// Returns images of a job that were not generated, and their cost to its owner.
    pub(super) fn put_back(&mut self, id: JobId, images: usize) {
        let Some(place) = self.place(id) else { return };
        let job = &mut self.jobs[place];
        job.images += images;
        self.shares.refund(&job.owner, job.cost.saturating_mul(images as u64));
    }

    /// Drops shares that no longer matter, after a key has one waiting job less.
    fn forget(&mut self, key: &str) {
        if self.iter().next().is_none() {
            self.shares = Shares::default();
        } else if !self.iter().any(|job| *job.owner.key == *key) {
            let least = self.shares.least;
            if let Some((_, users)) = self.shares.served.get_mut(key) {
                *users = Shares::default();
            }
            self.shares.served.retain(|_, (served, users)| *served > least || !users.served.is_empty());
        }
    }

    /// Returns the waiting jobs in order of arrival.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Waiting<S>> {
        self.jobs.iter().filter(|job| job.images > 0)
    }

    /// Returns the waiting jobs in scheduling order, without batches. The first one takes linear time, and each further
    /// one takes logarithmic time.
    pub(super) fn order(&self) -> impl Iterator<Item = &Waiting<S>> {
        let mut priorities: BTreeMap<Priority, Vec<usize>> = BTreeMap::new();
        for (place, job) in self.jobs.iter().enumerate().filter(|(_, job)| job.images > 0) {
            priorities.entry(job.priority).or_default().push(place);
        }
        let (shares, lines, turns) = (self.shares.clone(), Vec::new(), BinaryHeap::new());
        Order { jobs: &self.jobs, priorities, shares, lines, turns }.map(move |place| &self.jobs[place])
    }
}

impl<S: PartialEq> Queue<S> {
    /// Returns the batch that a device generates next: the first job that it can start, and jobs that suit it. Jobs
    /// past their deadline are left out.
    pub(super) fn next(&self, fits: &Fits<'_, S>, now: Instant) -> Next {
        let mut order = self.order().filter(|job| job.deadline.is_none_or(|deadline| deadline > now));
        let Some(head) = order.find(|job| (fits.starts)(job)) else { return Next::Nothing };
        let in_time = head.max_latency.zip((fits.seconds)(head));
        let in_time = in_time.map(|(latency, seconds)| (latency.as_secs_f64() / seconds.max(1e-9)) as usize);
        let (mut jobs, mut images, mut room) = (vec![head.id], head.images, head.images);
        let (mut passed, mut passed_by_taken) = (Vec::new(), 0);
        if head.combines {
            room = head.max_together.min(in_time.unwrap_or(usize::MAX));
            for job in order {
                let all = images.saturating_add(job.images);
                let may_pass = passed.is_empty() || job.since <= head.since + NEAR;
                let is_whole = job.combines && job.images == job.count && job.priority == head.priority;
                let suits = is_whole && job.model == head.model && job.shape == head.shape;
                if suits && may_pass && all <= room.min(job.max_together) {
                    jobs.push(job.id);
                    (images, room, passed_by_taken) = (all, room.min(job.max_together), passed.len());
                } else if images >= room || job.passed >= MAX_PASSED {
                    break;
                } else if job.model == head.model {
                    passed.push(job.id);
                }
            }
        }
        let left = (head.since + head.window).saturating_duration_since(now);
        if fits.waits && images < room && !left.is_zero() {
            return Next::Wait(left);
        }
        passed.truncate(passed_by_taken);
        Next::Batch { jobs, passed }
    }
}

/// An iterator over the places of waiting jobs in scheduling order.
struct Order<'a, S> {
    jobs: &'a [Waiting<S>],
    /// The jobs of each priority whose turns have not begun.
    priorities: BTreeMap<Priority, Vec<usize>>,
    /// Shares that include the costs of higher priorities.
    shares: Shares,
    /// The jobs of each key of the current priority, and the turns of the keys.
    lines: Vec<Line<'a>>,
    turns: BinaryHeap<Turn>,
}

/// A tag, the place of the job that is next, and the index of its key or user. Among equal tags, the oldest job is
/// next.
type Turn = Reverse<(u64, usize, usize)>;

/// The jobs of a key: those of each user, and the turns of the users.
struct Line<'a> {
    key: &'a Arc<str>,
    users: Vec<(&'a Arc<str>, VecDeque<usize>)>,
    turns: BinaryHeap<Turn>,
}

impl<'a, S> Order<'a, S> {
    /// Starts the turns of a priority.
    fn begin(&mut self, places: Vec<usize>) {
        self.lines.clear();
        let (mut lines, mut users) = (HashMap::new(), HashMap::new());
        for place in places {
            let Owner { key, user } = &self.jobs[place].owner;
            let index: usize = *lines.entry(&**key).or_insert_with(|| {
                self.lines.push(Line { key, users: Vec::new(), turns: BinaryHeap::new() });
                self.lines.len() - 1
            });
            let line = &mut self.lines[index];
            let index: usize = *users.entry((index, &**user)).or_insert_with(|| {
                line.turns.push(Reverse((self.shares.users(key).tag(user), place, line.users.len())));
                line.users.push((user, VecDeque::new()));
                line.users.len() - 1
            });
            line.users[index].1.push_back(place);
        }
        let turn = |(index, line): (usize, &Line<'_>)| {
            line.turns.peek().map(|Reverse((_, first, _))| Reverse((self.shares.tag(line.key), *first, index)))
        };
        self.turns = self.lines.iter().enumerate().filter_map(turn).collect();
    }
}

impl<S> Iterator for Order<'_, S> {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        while self.turns.is_empty() {
            let (_, places) = self.priorities.pop_last()?;
            self.begin(places);
        }
        let Reverse((key_tag, _, line)) = self.turns.pop()?;
        let Line { key, users, turns } = &mut self.lines[line];
        let Reverse((user_tag, _, index)) = turns.pop()?;
        let (user, places) = &mut users[index];
        let place = places.pop_front()?;
        let cost = self.jobs[place].total();
        // The costs of a priority matter only if a lower one follows.
        let is_last = self.priorities.is_empty();
        match places.front() {
            Some(next) => turns.push(Reverse((user_tag.saturating_add(cost), *next, index))),
            None if is_last => {}
            None => self.shares.users(key).set(user, user_tag, cost),
        }
        match turns.peek() {
            Some(Reverse((_, next, _))) => self.turns.push(Reverse((key_tag.saturating_add(cost), *next, line))),
            None if is_last => {}
            None => self.shares.set(key, key_tag, cost),
        }
        Some(place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Jobs = Queue<char>;

    /// Returns a job of one image, whose shape is `shape`.
    fn job(id: u64, shape: char, owner: (&str, &str), cost: u64) -> Waiting<char> {
        Waiting {
            id: JobId(id),
            owner: Owner { key: owner.0.into(), user: owner.1.into() },
            priority: Priority::Normal,
            deadline: None,
            cost,
            count: 1,
            images: 1,
            combines: true,
            model: 0,
            shape,
            max_together: usize::MAX,
            max_latency: None,
            window: Duration::ZERO,
            since: Instant::now(),
            passed: 0,
        }
    }

    /// Returns a queue of jobs with these shapes, keys and costs, numbered from 0.
    fn queue<'a>(jobs: impl IntoIterator<Item = (char, &'a str, u64)>) -> Jobs {
        let mut queue = Jobs::default();
        (0..).zip(jobs).for_each(|(id, (shape, key, cost))| queue.push(job(id, shape, (key, ""), cost)));
        queue
    }

    fn next(queue: &Jobs, seconds: Option<f64>) -> Next {
        let fits = Fits { starts: &|_| true, seconds: &|_| seconds, waits: true };
        queue.next(&fits, Instant::now())
    }

    /// Takes the next batch of at most `max` images, and returns the numbers of its jobs.
    fn take(queue: &mut Jobs, max: usize) -> Vec<u64> {
        queue.jobs.iter_mut().for_each(|job| job.max_together = max);
        let Next::Batch { jobs, passed } = next(queue, None) else { return Vec::new() };
        passed.into_iter().for_each(|id| queue.get_mut(id).unwrap().passed += 1);
        jobs.iter().for_each(|id| queue.take(*id, 1));
        jobs.into_iter().map(|JobId(number)| number).collect()
    }

    fn take_all(queue: &mut Jobs, max: usize) -> Vec<Vec<u64>> {
        std::iter::from_fn(|| Some(take(queue, max)).filter(|jobs| !jobs.is_empty())).collect()
    }

    #[test]
    fn keys_take_turns_regardless_of_their_number_of_jobs() {
        let mut jobs = queue([('a', "greedy", 1); 4].into_iter().chain([('a', "light", 1)]));
        assert_eq!(take_all(&mut jobs, 1).concat(), [0, 4, 1, 2, 3]);
        let mut jobs = Jobs::default();
        [("x", 0), ("x", 1), ("x", 2), ("y", 3)]
            .into_iter()
            .for_each(|(user, id)| jobs.push(job(id, 'a', ("key", user), 1)));
        assert_eq!(take_all(&mut jobs, 1).concat(), [0, 3, 1, 2], "users of a key, too");
    }

    #[test]
    fn shares_are_by_cost() {
        let mut jobs = queue((0..80).map(|number| [('a', "large", 4), ('a', "small", 1)][number % 2]));
        let first: Vec<_> = take_all(&mut jobs, 1).concat().into_iter().take(25).collect();
        assert_eq!(first.iter().filter(|id| **id % 2 == 0).count(), 5);
    }

    #[test]
    fn an_idle_key_saves_nothing() {
        let mut jobs = queue([('a', "early", 1)].into_iter().chain([('a', "busy", 1); 10]));
        (0..6).for_each(|_| drop(take(&mut jobs, 1)));
        (20..25).for_each(|id| jobs.push(job(id, 'a', ("early", ""), 1)));
        let next: Vec<_> = (0..4).flat_map(|_| take(&mut jobs, 1)).collect();
        assert_eq!(next.iter().filter(|id| **id >= 20).count(), 2, "{next:?}");
    }

    #[test]
    fn higher_priorities_are_first_and_jobs_past_their_deadline_are_left_out() {
        let mut jobs = Jobs::default();
        let now = Instant::now();
        for (id, priority, deadline) in [
            (0, Priority::Normal, None),
            (1, Priority::Low, Some(now + Duration::from_secs(100))),
            (2, Priority::High, None),
            (3, Priority::High, Some(now)),
        ] {
            jobs.push(Waiting { priority, deadline, ..job(id, 'a', (&id.to_string(), ""), 9 - id) });
        }
        assert_eq!(take_all(&mut jobs, 1).concat(), [2, 0, 1]);
        assert_eq!(jobs.iter().count(), 1);
    }

    #[test]
    fn jobs_of_one_shape_form_a_batch_and_overtake_others_at_most_twice() {
        let with_shapes = |shapes: &str| queue(shapes.chars().map(|shape| (shape, "k", 1)));
        let mut jobs = with_shapes("abaaaab");
        assert_eq!(take_all(&mut jobs, 2), [vec![0, 2], vec![1, 6], vec![3, 4], vec![5]]);
        let mut jobs = with_shapes("aabacaaa");
        let batches = take_all(&mut jobs, 8);
        assert_eq!((&batches[0], batches.len()), (&vec![0, 1, 3, 5, 6, 7], 3), "all that arrived soon after");
        let mut jobs = with_shapes("ab");
        jobs.jobs.iter_mut().for_each(|job| job.since -= NEAR * 2);
        jobs.push(job(2, 'a', ("k", ""), 1));
        assert_eq!(take_all(&mut jobs, 8), [[0], [1], [2]], "a job that arrived much later overtakes none");
        let mut jobs = with_shapes("acbacb");
        jobs.jobs[1].passed = MAX_PASSED;
        assert_eq!(take(&mut jobs, 8), [0], "the second job is not overtaken again");
        let mut other = job(9, 'a', ("k", ""), 1);
        other.model = 1;
        let mut jobs = with_shapes("a");
        jobs.push(other);
        assert_eq!(take_all(&mut jobs, 8), [[0], [9]], "of another model");
    }

    #[test]
    fn a_batch_takes_no_longer_than_it_may_and_waits_for_its_window() {
        let mut jobs = queue([('a', "k", 1); 4]);
        let in_batch = |jobs: &Jobs, seconds: Option<f64>| match next(jobs, seconds) {
            Next::Batch { jobs, .. } => jobs.len(),
            _ => 0,
        };
        jobs.jobs.iter_mut().for_each(|job| job.max_latency = Some(Duration::from_secs(1)));
        let sizes = [None, Some(0.01), Some(0.3), Some(0.6), Some(9.0)].map(|seconds| in_batch(&jobs, seconds));
        assert_eq!(sizes, [4, 4, 3, 1, 1]);
        jobs.jobs.iter_mut().for_each(|job| job.window = Duration::from_secs(100));
        assert_eq!([Some(0.01), Some(0.3)].map(|seconds| in_batch(&jobs, seconds)), [0, 3], "full batches start");
    }

    /// Returns a queue of jobs of 256 keys.
    fn full(jobs: u64) -> Jobs {
        let mut queue = Jobs::default();
        for id in 0..jobs {
            let owner = (&*format!("client {}", id * 7 % 256), &*format!("user {}", id % 3));
            let shape = char::from_u32(u32::try_from(id).unwrap() + 0x1_0000).unwrap();
            queue.push(job(id, shape, owner, 1 + id % 5));
        }
        queue
    }

    #[test]
    fn a_full_queue_is_ordered_in_little_time() {
        let mut queue = full(2560);
        let time = |work: &mut dyn FnMut()| {
            let times = (0..20).map(|_| {
                let start = Instant::now();
                work();
                start.elapsed()
            });
            times.min().unwrap()
        };
        let ordered = time(&mut || assert_eq!(queue.order().count(), 2560));
        let taken = time(&mut || assert_eq!(take(&mut queue, 8).len(), 1));
        println!("ordered in {ordered:?}, taken in {taken:?}");
        // Less than a millisecond with optimization.
        assert!(ordered.max(taken) < Duration::from_millis(20), "{ordered:?} {taken:?}");
    }

    #[test]
    fn jobs_are_taken_in_the_predicted_order() {
        let mut queue = Jobs::default();
        let priorities = [Priority::Low, Priority::Normal, Priority::High];
        for id in 0..400_u64 {
            let random = (id.wrapping_mul(2_654_435_761) >> 7) as usize;
            let owner = (["a", "b", "c", "d"][random % 4], ["", "x", "y"][random / 4 % 3]);
            let shape = char::from(b'a' + (id % 5) as u8);
            let job = job(id, shape, owner, 1 + random as u64 / 36 % 9);
            queue.push(Waiting { priority: priorities[random / 12 % 3], ..job });
        }
        (0..30).for_each(|_| drop(take(&mut queue, 4)));
        let predicted: Vec<_> = queue.order().map(|job| job.id.0).collect();
        let taken: Vec<_> = predicted.iter().flat_map(|_| take(&mut queue, 1)).collect();
        assert_eq!(taken, predicted);
        assert!(queue.iter().next().is_none() && queue.shares.served.is_empty());
    }
}
