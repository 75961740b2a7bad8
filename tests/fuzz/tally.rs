//! Results of runs, by kind.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Mutex;

use super::cases::Kind;
use super::run::Ended;

/// The results of the runs of one kind.
#[derive(Default)]
struct Tally {
    codes: BTreeMap<Option<i32>, u64>,
    processor: f64,
    slowest: (f64, u64),
    kib: u64,
    findings: u64,
}

/// The runs of all kinds.
#[derive(Default)]
pub struct Tallies(Mutex<BTreeMap<Kind, Tally>>);

impl Tallies {
    pub fn add(&self, kind: Kind, number: u64, ended: &Ended) {
        let mut tallies = self.0.lock().expect("no thread panics with it");
        let tally = tallies.entry(kind).or_default();
        *tally.codes.entry(ended.code).or_default() += 1;
        tally.processor += ended.processor;
        tally.kib = tally.kib.max(ended.kib);
        tally.findings += u64::from(!ended.findings.is_empty());
        if ended.seconds > tally.slowest.0 {
            tally.slowest = (ended.seconds, number);
        }
    }

    /// Returns a line for each kind, and one for all.
    pub fn table(&self) -> String {
        let tallies = self.0.lock().expect("no thread panics with it");
        let mut table = format!(
            "{:<10} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>9} {:>9}  slowest\n",
            "kind", "runs", "code 0", "code 1", "code 2", "other", "findings", "ms of CPU", "most MiB"
        );
        let mut sum = Tally::default();
        for (kind, tally) in tallies.iter() {
            line(&mut table, &format!("{kind:?}"), tally);
            tally.codes.iter().for_each(|(code, runs)| *sum.codes.entry(*code).or_default() += runs);
            sum.processor += tally.processor;
            sum.kib = sum.kib.max(tally.kib);
            sum.findings += tally.findings;
            if tally.slowest.0 > sum.slowest.0 {
                sum.slowest = tally.slowest;
            }
        }
        line(&mut table, "all", &sum);
        table
    }
}

fn line(table: &mut String, name: &str, tally: &Tally) {
    let runs: u64 = tally.codes.values().sum();
    let of = |code: i32| tally.codes.get(&Some(code)).copied().unwrap_or_default();
    let codes = [of(0), of(1), of(2)];
    let other = runs - codes.iter().sum::<u64>();
    let [success, failure, usage] = codes;
    let (milliseconds, mib) = (1e3 * tally.processor / runs.max(1) as f64, tally.kib / 1024);
    let (slowest, run) = tally.slowest;
    writeln!(
        table,
        "{name:<10} {runs:>8} {success:>8} {failure:>8} {usage:>8} {other:>8} {:>8} {milliseconds:>9.1} {mib:>9}  \
         {slowest:.1} s (run {run})",
        tally.findings
    )
    .expect("memory takes all");
}
