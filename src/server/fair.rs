//! Which of those who wait is next.
//!
//! Keys take turns by what they cost, so that each of several that always ask gets the same share; so do the users of
//! a key. Of one user, the oldest is first. What suits the next one is made with it, but nobody is passed twice by
//! something that came later.

use std::cmp::{Ordering, Reverse};
use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::request::Priority;

/// What came so long after the next one passes nobody.
const NEAR: Duration = Duration::from_secs(2);
/// How often something that waits may be passed.
const MOST_PASSED: u8 = 2;

/// Something that waits.
#[derive(Debug)]
pub struct Waiting<T> {
    pub item: T,
    pub priority: Priority,
    pub key: String,
    /// Of the key.
    pub user: String,
    /// The work that it takes, in any unit.
    pub cost: f64,
    pub since: Instant,
    order: u64,
    passed: u8,
}

/// Those who wait.
#[derive(Debug)]
pub struct FairQueue<T> {
    waiting: Vec<Waiting<T>>,
    keys: Shares,
    users: HashMap<String, Shares>,
    arrived: u64,
}

/// Those of one user and one priority, the oldest last.
struct Line {
    places: Vec<usize>,
    /// Whether they were passed too often.
    is_late: bool,
}

/// How much each of several had, as far as it matters.
#[derive(Debug, Default, Clone)]
struct Shares {
    /// What whoever comes anew is taken to have had.
    least: f64,
    had: HashMap<String, f64>,
}

impl Shares {
    fn of(&self, name: &str) -> f64 {
        self.had.get(name).map_or(self.least, |had| had.max(self.least))
    }

    /// Takes the next: nobody who comes later is served before those that waited.
    fn serve(&mut self, name: &str, cost: f64) {
        let before = self.of(name);
        self.least = self.least.max(before);
        self.had.insert(name.to_string(), before + cost);
        let least = self.least;
        self.had.retain(|_, had| *had > least);
    }
}

impl<T> Default for FairQueue<T> {
    fn default() -> Self {
        Self { waiting: Vec::new(), keys: Shares::default(), users: HashMap::new(), arrived: 0 }
    }
}

impl<T> FairQueue<T> {
    pub fn push(&mut self, item: T, priority: Priority, (key, user): (&str, &str), cost: f64, since: Instant) {
        self.arrived += 1;
        let (key, user) = (key.to_string(), user.to_string());
        self.waiting.push(Waiting { item, priority, key, user, cost, since, order: self.arrived, passed: 0 });
    }

    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// All that wait, in no order.
    pub fn iter(&self) -> impl Iterator<Item = &Waiting<T>> {
        self.waiting.iter()
    }

    /// Takes out what is not wanted any more.
    pub fn take_where(&mut self, is_taken: impl Fn(&T) -> bool) -> Vec<T> {
        self.waiting.extract_if(.., |waiting| is_taken(&waiting.item)).map(|waiting| waiting.item).collect()
    }

    /// The places of those who wait, in the order in which they would be next by themselves.
    pub fn order(&self) -> Vec<usize> {
        let mut lines = self.lines();
        let mut keys = self.keys.clone();
        let mut users = self.users.clone();
        let mut order = Vec::with_capacity(self.waiting.len());
        loop {
            let first = |line: &Line| line.places.last().map(|place| &self.waiting[*place]);
            // Urgent ones, of these those that were passed too often, of these the key that had least, of it the user.
            let class = |line: &Line| first(line).map(|first| (Reverse(first.priority), !line.is_late));
            let class_of_next = lines.iter().filter_map(class).min();
            let heads = || {
                let of_class = lines.iter().enumerate().filter(|(_, line)| class(line) == class_of_next);
                of_class.filter_map(|(number, line)| Some((number, first(line)?, line.is_late)))
            };
            let share = |waiting: &Waiting<T>, is_late: bool| if is_late { 0.0 } else { keys.of(&waiting.key) };
            let key = heads().min_by(|(_, a, a_is_late), (_, b, b_is_late)| {
                share(a, *a_is_late).total_cmp(&share(b, *b_is_late)).then(a.order.cmp(&b.order))
            });
            let user = |waiting: &Waiting<T>| users.get(&waiting.key).map_or(0.0, |shares| shares.of(&waiting.user));
            let of_key = heads().filter(|(_, waiting, _)| key.is_some_and(|(_, first, _)| first.key == waiting.key));
            let next = of_key.min_by(|(_, a, is_late), (_, b, _)| {
                let shares = if *is_late { Ordering::Equal } else { user(a).total_cmp(&user(b)) };
                shares.then(a.order.cmp(&b.order))
            });
            let next = next.map(|(number, ..)| number);
            let Some(place) = next.and_then(|line| lines[line].places.pop()) else { return order };
            let waiting = &self.waiting[place];
            keys.serve(&waiting.key, waiting.cost);
            users.entry(waiting.key.clone()).or_default().serve(&waiting.user, waiting.cost);
            order.push(place);
        }
    }

    /// Those who wait one behind the other, whatever others have.
    fn lines(&self) -> Vec<Line> {
        let mut lines: HashMap<_, Vec<usize>> = HashMap::new();
        for (place, waiting) in self.waiting.iter().enumerate().rev() {
            let is_late = waiting.passed >= MOST_PASSED;
            lines.entry((&waiting.key, &waiting.user, waiting.priority, is_late)).or_default().push(place);
        }
        lines.into_iter().map(|((.., is_late), places)| Line { places, is_late }).collect()
    }

    /// Takes the next one that may not wait, or where all may the next one, and those that suit it, up to `most` of it
    /// in all.
    pub fn take_group(
        &mut self,
        most: impl FnOnce(&T) -> usize,
        may_wait: impl Fn(&Waiting<T>) -> bool,
        suits: impl Fn(&T, &T) -> bool,
    ) -> Vec<T> {
        let mut order = self.order();
        if let Some(first) = order.iter().position(|place| !may_wait(&self.waiting[*place])) {
            order[..=first].rotate_right(1);
        }
        let Some((&first, others)) = order.split_first() else { return Vec::new() };
        let most = most(&self.waiting[first].item);
        let (mut taken, mut passed) = (vec![first], Vec::new());
        for &place in others {
            let [head, waiting] = [first, place].map(|place| &self.waiting[place]);
            let may_pass = passed.is_empty()
                || (waiting.since <= head.since + NEAR
                    && passed.iter().all(|place: &usize| self.waiting[*place].passed < MOST_PASSED));
            if taken.len() < most && waiting.priority >= head.priority && may_pass && suits(&head.item, &waiting.item) {
                taken.push(place);
            } else {
                passed.push(place);
            }
        }
        let last = taken.iter().filter_map(|place| order.iter().position(|other| other == place)).max().unwrap_or(0);
        for place in order[..last].iter().filter(|place| !taken.contains(place)) {
            self.waiting[*place].passed += 1;
        }
        self.take(&taken)
    }

    /// Takes those at some places, in this order.
    fn take(&mut self, places: &[usize]) -> Vec<T> {
        let mut slots: Vec<Option<Waiting<T>>> = self.waiting.drain(..).map(Some).collect();
        let taken: Vec<_> = places.iter().filter_map(|place| slots[*place].take()).collect();
        self.waiting = slots.into_iter().flatten().collect();
        for Waiting { key, user, cost, .. } in &taken {
            self.keys.serve(key, *cost);
            self.users.entry(key.clone()).or_default().serve(user, *cost);
        }
        let waiting = &self.waiting;
        self.users.retain(|key, _| waiting.iter().any(|waiting| waiting.key == *key));
        taken.into_iter().map(|waiting| waiting.item).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn push(queue: &mut FairQueue<&'static str>, item: &'static str, key: &str, cost: f64) {
        queue.push(item, Priority::Normal, (key, ""), cost, Instant::now());
    }

    fn take_all(queue: &mut FairQueue<&'static str>, most: usize) -> Vec<Vec<&'static str>> {
        let same = |a: &&str, b: &&str| a.chars().next() == b.chars().next();
        std::iter::from_fn(|| Some(queue.take_group(|_| most, |_| false, same)).filter(|group| !group.is_empty()))
            .collect()
    }

    #[test]
    fn keys_take_turns_whoever_asks_more() {
        let mut queue = FairQueue::default();
        for item in ["a1", "a2", "a3", "a4"] {
            push(&mut queue, item, "greedy", 1.0);
        }
        push(&mut queue, "b1", "light", 1.0);
        assert_eq!(take_all(&mut queue, 1).concat(), ["a1", "b1", "a2", "a3", "a4"]);
    }

    #[test]
    fn shares_are_of_what_things_cost() {
        let mut queue = FairQueue::default();
        for _ in 0..40 {
            push(&mut queue, "large", "l", 4.0);
            push(&mut queue, "small", "s", 1.0);
        }
        let first: Vec<_> = take_all(&mut queue, 1).concat().into_iter().take(25).collect();
        assert_eq!(first.iter().filter(|item| **item == "large").count(), 5);
    }

    #[test]
    fn who_comes_back_has_saved_nothing() {
        let mut queue = FairQueue::default();
        push(&mut queue, "a", "early", 1.0);
        assert_eq!(queue.take_group(|_| 1, |_| false, |_, _| false), ["a"]);
        for _ in 0..10 {
            push(&mut queue, "b", "busy", 1.0);
        }
        for _ in 0..5 {
            queue.take_group(|_| 1, |_| false, |_, _| false);
        }
        for _ in 0..5 {
            push(&mut queue, "a", "early", 1.0);
        }
        let next: Vec<_> = (0..4).flat_map(|_| queue.take_group(|_| 1, |_| false, |_, _| false)).collect();
        assert_eq!(next.iter().filter(|item| **item == "a").count(), 2, "{next:?}");
    }

    #[test]
    fn users_of_a_key_take_turns_too() {
        let mut queue = FairQueue::default();
        for (item, user) in [("x1", "x"), ("x2", "x"), ("x3", "x"), ("y1", "y")] {
            queue.push(item, Priority::Normal, ("key", user), 1.0, Instant::now());
        }
        assert_eq!(take_all(&mut queue, 1).concat(), ["x1", "y1", "x2", "x3"]);
    }

    #[test]
    fn what_is_urgent_is_first() {
        let mut queue = FairQueue::default();
        push(&mut queue, "normal", "a", 1.0);
        queue.push("low", Priority::Low, ("b", ""), 1.0, Instant::now());
        queue.push("high", Priority::High, ("c", ""), 9.0, Instant::now());
        assert_eq!(take_all(&mut queue, 1).concat(), ["high", "normal", "low"]);
    }

    #[test]
    fn what_suits_is_made_together_and_nobody_is_passed_twice() {
        let mut queue = FairQueue::default();
        for (item, key) in [("a1", "k"), ("b1", "k"), ("a2", "k"), ("a3", "k"), ("a4", "k"), ("a5", "k"), ("b2", "k")] {
            push(&mut queue, item, key, 1.0);
        }
        assert_eq!(take_all(&mut queue, 2), [vec!["a1", "a2"], vec!["b1", "b2"], vec!["a3", "a4"], vec!["a5"]]);
        for item in ["a1", "a2", "b1", "a3", "c1", "a4", "a5", "a6"] {
            push(&mut queue, item, "k", 1.0);
        }
        let groups = take_all(&mut queue, 8);
        assert_eq!(groups[0], ["a1", "a2", "a3", "a4", "a5", "a6"], "all that suit, of those that came soon after");
        assert_eq!(groups.len(), 3);
    }

    #[test]
    fn what_may_wait_does_so_while_there_is_something_else() {
        let mut queue = FairQueue::default();
        for item in ["a1", "b1", "a2", "b2"] {
            push(&mut queue, item, "k", 1.0);
        }
        let mut next = || queue.take_group(|_| 1, |waiting| waiting.item.starts_with('a'), |_, _| false).concat();
        assert_eq!([next(), next(), next(), next()], ["b1", "b2", "a1", "a2"]);
    }

    #[test]
    fn what_came_much_later_passes_nobody() {
        let mut queue = FairQueue::default();
        let now = Instant::now();
        let later = now + NEAR + Duration::from_millis(1);
        for (item, since) in [("a1", now), ("b1", now), ("a2", later)] {
            queue.push(item, Priority::Normal, ("k", ""), 1.0, since);
        }
        assert_eq!(take_all(&mut queue, 8), [["a1"], ["b1"], ["a2"]]);
    }
}
