//! From a template to prompts: random words of a seed, or all combinations.

use std::collections::HashMap;
use std::iter;
use std::rc::Rc;

use super::MAX_COMBINATIONS;
use super::template::{Fault, Group, MAX_DEPTH, Node, Place, Wildcard, parse};
use super::wildcards::{Entry, Refusal, Wildcards};
use crate::error::{Error, Result};
use crate::pipeline::{MAX_PROMPT_BYTES, PROMPT_TOO_LONG};
use crate::sampler::RandomStream;

/// The first stream of a seed for words; the noise of an image uses lower ones.
const FIRST_STREAM: u64 = 1 << 63;
/// Maximum number of options that are picked for a prompt.
const MAX_PICKS: usize = 1000;

/// Returns the prompt of a template with the random words of a seed.
///
/// Every choice outside other choices has a stream of its own, numbered in the order of the text. Choices inside it
/// continue its stream. So text that is added at the end changes nothing before it.
pub(super) fn random(template: &str, seed: u64, files: &Wildcards) -> Result<String> {
    let mut run = Run::new(files);
    let nodes = parse(template, Place::START).map_err(|fault| run.error(fault))?;
    let mut streams = (FIRST_STREAM..).map(|stream| RandomStream::new(seed, stream));
    let mut text = String::new();
    for node in &nodes {
        if let Node::Text(words) = node {
            text.push_str(words);
        } else if let Some(mut stream) = streams.next() {
            run.write(node, &mut stream, &mut text)?;
        }
        check_length(&text)?;
    }
    Ok(text)
}

/// Returns all prompts of a template; the last choice changes first.
///
/// Errors if there are more than [`MAX_COMBINATIONS`].
pub(super) fn all(template: &str, files: &Wildcards) -> Result<Vec<String>> {
    let mut run = Run::new(files);
    let nodes = parse(template, Place::START).map_err(|fault| run.error(fault))?;
    let count = run.count(&nodes)?;
    if count > MAX_COMBINATIONS as u64 {
        let count = if count == u64::MAX { "too many to count".to_string() } else { count.to_string() };
        let what = format!("the combinations of the prompt are {count}, expected at most {MAX_COMBINATIONS}");
        return Err(Error::usage(what).hint("leave out some options, or use random words"));
    }
    run.list(&nodes)
}

/// The state of an expansion.
struct Run<'a> {
    files: &'a Wildcards,
    /// Names of the wildcards around the current node, from outside to inside.
    chain: Vec<String>,
    /// Number of choices around the current node.
    depth: usize,
    picks: usize,
    /// Combinations of the wildcards that were counted.
    counts: HashMap<String, u64>,
}

impl<'a> Run<'a> {
    fn new(files: &'a Wildcards) -> Self {
        Self { files, chain: Vec::new(), depth: 0, picks: 0, counts: HashMap::new() }
    }

    /// Returns the error of a fault in the current text.
    fn error(&self, Fault { place, what, hint }: Fault) -> Error {
        let error = Error::usage(match self.chain.last() {
            Some(name) => format!("`__{name}__`, {place}: {what}"),
            None => format!("{place} of the prompt: {what}"),
        });
        match hint {
            Some(hint) => error.hint(hint),
            None => error,
        }
    }

    fn wrong(&self, place: Place, what: impl Into<String>) -> Error {
        self.error(Fault { place, what: what.into(), hint: None })
    }

    /// Runs `work` one level deeper.
    ///
    /// Errors if choices are nested too deeply.
    fn deeper<T>(&mut self, place: Place, work: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        if self.depth == MAX_DEPTH {
            return Err(self.wrong(place, format!("choices are nested more than {MAX_DEPTH} deep")));
        }
        self.depth += 1;
        let done = work(self);
        self.depth -= 1;
        done
    }

    /// Returns the entries of a wildcard.
    ///
    /// Errors if there are none, or if the wildcard is one of those around it.
    fn entries(&self, Wildcard { place, name }: &Wildcard) -> Result<Rc<[Entry]>> {
        if self.chain.contains(name) {
            let path: Vec<_> = self.chain.iter().chain([name]).map(|name| format!("`__{name}__`")).collect();
            return Err(self.wrong(*place, format!("a wildcard contains itself: {}", path.join(" -> "))));
        }
        let fault = |Refusal { what, hint }| self.error(Fault { place: *place, what, hint });
        self.files.get(name).map_err(fault)
    }

    /// Runs `work` on the template of an entry.
    fn inside<T>(
        &mut self,
        wildcard: &Wildcard,
        entry: &Entry,
        work: impl FnOnce(&mut Self, &[Node]) -> Result<T>,
    ) -> Result<T> {
        self.deeper(wildcard.place, |run| {
            run.chain.push(wildcard.name.clone());
            let nodes = parse(&entry.text, Place { line: entry.line, column: 1 }).map_err(|fault| run.error(fault));
            let done = nodes.and_then(|nodes| work(run, &nodes));
            run.chain.pop();
            done
        })
    }

    /// Adds the random words of a node.
    fn write(&mut self, node: &Node, random: &mut RandomStream, text: &mut String) -> Result<()> {
        match node {
            Node::Text(words) => text.push_str(words),
            Node::Wildcard(wildcard) => self.write_entries((wildcard, wildcard.place, [1, 1], ""), random, text)?,
            Node::Group(group) => match group.wildcard() {
                Some(wildcard) => {
                    self.write_entries((wildcard, group.place, group.picks, &group.separator), random, text)?;
                }
                None => {
                    let picked = self.pick(&group.weights(), group.picks, group.place, random)?;
                    for (number, option) in picked.into_iter().enumerate() {
                        text.push_str(if number > 0 { &group.separator } else { "" });
                        let nodes = &group.options[option].nodes;
                        self.deeper(group.place, |run| run.write_all(nodes, random, text))?;
                    }
                }
            },
        }
        check_length(text)
    }

    fn write_all(&mut self, nodes: &[Node], random: &mut RandomStream, text: &mut String) -> Result<()> {
        nodes.iter().try_for_each(|node| self.write(node, random, text))
    }

    fn write_entries(
        &mut self,
        (wildcard, place, picks, separator): (&Wildcard, Place, [usize; 2], &str),
        random: &mut RandomStream,
        text: &mut String,
    ) -> Result<()> {
        let entries = self.entries(wildcard)?;
        let weights: Vec<_> = entries.iter().map(|entry| entry.weight).collect();
        for (number, pick) in self.pick(&weights, picks, place, random)?.into_iter().enumerate() {
            text.push_str(if number > 0 { separator } else { "" });
            self.inside(wildcard, &entries[pick], |run, nodes| run.write_all(nodes, random, text))?;
        }
        Ok(())
    }

    /// Picks different options by their weights, in random order.
    fn pick(
        &mut self,
        weights: &[f64],
        [least, most]: [usize; 2],
        place: Place,
        random: &mut RandomStream,
    ) -> Result<Vec<usize>> {
        let mut left = self.possible(weights, least, place)?;
        let most = most.min(left.len());
        let more = if least < most { (random.uniform() * (most - least + 1) as f64) as usize } else { 0 };
        self.picks += least + more;
        if self.picks > MAX_PICKS {
            return Err(self.wrong(place, format!("more than {MAX_PICKS} options are picked")));
        }
        let mut pick = || {
            let sum = |sum: &mut f64, option: &usize| {
                *sum += weights[*option];
                Some(*sum)
            };
            let total = left.iter().scan(0.0, sum).last().unwrap_or_default();
            let point = random.uniform() * total;
            let at = left.iter().scan(0.0, sum).position(|sum| point < sum);
            left.remove(at.unwrap_or(left.len() - 1))
        };
        Ok((0..least + more).map(|_| pick()).collect())
    }

    /// Returns the options with a weight.
    ///
    /// Errors if there are fewer than `least`.
    fn possible(&self, weights: &[f64], least: usize, place: Place) -> Result<Vec<usize>> {
        let possible: Vec<_> = (0..weights.len()).filter(|option| weights[*option] > 0.0).collect();
        match possible.len() {
            0 => Err(self.wrong(place, "all weights are 0")),
            count if count < least => {
                Err(self.wrong(place, format!("{least} options are to be picked, but there are {count}")))
            }
            _ => Ok(possible),
        }
    }

    /// Returns the number of combinations, at most [`u64::MAX`].
    fn count(&mut self, nodes: &[Node]) -> Result<u64> {
        let mut all = 1u64;
        for node in nodes {
            all = all.saturating_mul(match node {
                Node::Text(_) => 1,
                Node::Wildcard(Wildcard { name, .. }) if self.counts.contains_key(name) => self.counts[name],
                Node::Wildcard(wildcard) => {
                    let count = self.count_entries(wildcard)?.into_iter().fold(0, u64::saturating_add);
                    self.counts.insert(wildcard.name.clone(), count);
                    count
                }
                Node::Group(group) => {
                    let counts = self.options(group, Self::count, Self::count_entries)?;
                    subset_products(&counts, group.picks)
                }
            });
        }
        Ok(all)
    }

    /// Returns the number of combinations of each entry of a wildcard.
    fn count_entries(&mut self, wildcard: &Wildcard) -> Result<Vec<u64>> {
        self.each_entry(wildcard, |run, nodes| run.count(nodes))
    }

    /// Returns all prompts of nodes.
    fn list(&mut self, nodes: &[Node]) -> Result<Vec<String>> {
        let mut all = vec![String::new()];
        for node in nodes {
            let parts = match node {
                Node::Text(words) => vec![words.clone()],
                Node::Wildcard(wildcard) => self.list_entries(wildcard)?.concat(),
                Node::Group(group) => {
                    let options = self.options(group, Self::list, Self::list_entries)?;
                    let [least, most] = [group.picks[0], group.picks[1].min(options.len())];
                    let sets = (least..=most).flat_map(|count| subsets(options.len(), count));
                    let join = |set: Vec<usize>| {
                        let first = |place: usize| if place > 0 { group.separator.as_str() } else { "" };
                        set.iter().enumerate().try_fold(vec![String::new()], |all, (place, option)| {
                            joined(&all, first(place), &options[*option])
                        })
                    };
                    sets.map(join).collect::<Result<Vec<_>>>()?.concat()
                }
            };
            all = joined(&all, "", &parts)?;
        }
        Ok(all)
    }

    fn list_entries(&mut self, wildcard: &Wildcard) -> Result<Vec<Vec<String>>> {
        self.each_entry(wildcard, |run, nodes| run.list(nodes))
    }

    /// Returns a value for each option of a group that has a weight.
    fn options<T>(
        &mut self,
        group: &Group,
        value: impl Fn(&mut Self, &[Node]) -> Result<T>,
        of_entries: impl Fn(&mut Self, &Wildcard) -> Result<Vec<T>>,
    ) -> Result<Vec<T>> {
        let values = match group.wildcard() {
            Some(wildcard) => of_entries(self, wildcard)?,
            None => {
                let possible = self.possible(&group.weights(), 1, group.place)?;
                let value = |option: usize| self.deeper(group.place, |run| value(run, &group.options[option].nodes));
                possible.into_iter().map(value).collect::<Result<_>>()?
            }
        };
        self.possible(&vec![1.0; values.len()], group.picks[0], group.place).map(|_| values)
    }

    /// Returns a value for each entry of a wildcard that has a weight.
    fn each_entry<T>(
        &mut self,
        wildcard: &Wildcard,
        value: impl Fn(&mut Self, &[Node]) -> Result<T>,
    ) -> Result<Vec<T>> {
        let entries = self.entries(wildcard)?;
        let weights: Vec<_> = entries.iter().map(|entry| entry.weight).collect();
        let possible = self.possible(&weights, 1, wildcard.place)?;
        possible.into_iter().map(|entry| self.inside(wildcard, &entries[entry], &value)).collect()
    }
}

/// Errors if a prompt is too long.
fn check_length(text: &str) -> Result<()> {
    if text.len() <= MAX_PROMPT_BYTES {
        return Ok(());
    }
    Err(Error::usage(format!("the expanded prompt is longer than {MAX_PROMPT_BYTES} bytes")).hint(PROMPT_TOO_LONG))
}

/// Returns each of `all` followed by each of `parts`.
///
/// Errors if one of them is too long.
fn joined(all: &[String], separator: &str, parts: &[String]) -> Result<Vec<String>> {
    let pairs = all.iter().flat_map(|first| parts.iter().map(move |second| format!("{first}{separator}{second}")));
    pairs.map(|text| check_length(&text).map(|()| text)).collect()
}

/// Returns the sum over all sets of options of the product of their counts, at most [`u64::MAX`].
fn subset_products(counts: &[u64], [least, most]: [usize; 2]) -> u64 {
    // The sums over sets of each size of the options so far.
    let mut sums = vec![0u64; most.min(counts.len()) + 1];
    sums[0] = 1;
    for count in counts {
        for size in (1..sums.len()).rev() {
            sums[size] = sums[size].saturating_add(sums[size - 1].saturating_mul(*count));
        }
    }
    sums[least..].iter().fold(0, |all, sum| all.saturating_add(*sum))
}

/// Returns all sets of `count` of the options, in order.
fn subsets(options: usize, count: usize) -> impl Iterator<Item = Vec<usize>> {
    iter::successors(Some((0..count).collect()), move |set: &Vec<usize>| {
        let at = (0..count).rev().find(|at| set[*at] < options - count + at)?;
        let mut next = set.clone();
        next[at..].iter_mut().zip(set[at] + 1..).for_each(|(to, option)| *to = option);
        Some(next)
    })
}
