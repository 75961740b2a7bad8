//! `flux rm`: removes models from the cache. It asks and reports; `removal` decides which files can go. Start reading
//! at [`run`].

mod removal;

use flux::Result;
use flux::error::Error;
use flux::error::shell::word;
use flux_hub::{Cache, Named};

use self::removal::Removal;
use super::ask;
use super::download::named;
use super::json::print_object;
use crate::cli::Remove;
use flux_runtime::progress::{gigabytes, say};

/// Removes the models after a question. All models are looked up before the first is removed.
pub fn run(args: &Remove) -> Result<()> {
    let cache = Cache::from_environment()?;
    let names = without_repeats(args.names.iter().map(|name| named(name)).collect::<Result<Vec<_>>>()?);
    let plan = |named| Removal::plan(&cache, named, args.revision.as_deref());
    let removals = names.iter().map(plan).collect::<Result<Vec<_>>>()?;
    let bytes: u64 = removals.iter().map(Removal::bytes).sum();
    let list: Vec<String> = names.iter().map(ToString::to_string).collect();
    if !args.yes {
        if !ask::can_ask() {
            let words: Vec<_> = list.iter().map(|name| word(name)).collect();
            return Err(Error::usage("confirmation requires a terminal")
                .at("rm")
                .hint(format!("run `flux rm --yes {}` to remove without confirmation", words.join(" "))));
        }
        if !ask::agrees(&format!("Remove {} from the cache, {}?", list.join(", "), gigabytes(bytes))) {
            say("nothing was removed");
            return Ok(());
        }
    }
    let mut freed = 0;
    for (removal, name) in removals.iter().zip(&list) {
        let bytes = removal.run()?;
        freed += bytes;
        if args.json {
            print_object(&serde_json::json!({ "removed": name.to_string(), "bytes": bytes }))?;
        }
        say(&format!("removed {name}: {}", gigabytes(bytes)));
    }
    if removals.len() > 1 {
        say(&format!("freed {freed} bytes in total"));
    }
    Ok(())
}

/// Removes redundant names: duplicates, and files of a model that is named as a whole.
fn without_repeats(names: Vec<Named>) -> Vec<Named> {
    let wholes: Vec<_> =
        names.iter().filter(|named| named.file.is_none()).map(|named| named.repository.clone()).collect();
    let mut kept: Vec<Named> = Vec::new();
    for named in names {
        let is_covered = named.file.is_some() && wholes.contains(&named.repository);
        if !is_covered && !kept.contains(&named) {
            kept.push(named);
        }
    }
    kept
}
