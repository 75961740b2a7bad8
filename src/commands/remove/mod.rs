//! `flux rm`: models out of the cache.

mod removal;

use flux::Result;
use flux::error::Error;
use flux::hub::{Cache, Named};

use self::removal::Removal;
use super::ask;
use super::download::named;
use super::json::print_object;
use crate::cli::Remove;
use crate::progress::{gigabytes, say};

/// Removes the models, if the user agrees. All of them are looked for before one is removed.
pub fn run(args: &Remove) -> Result<()> {
    let cache = Cache::of_environment()?;
    let names = without_repeats(args.names.iter().map(|name| named(name)).collect::<Result<Vec<_>>>()?);
    let plan = |named| Removal::plan(&cache, named, args.revision.as_deref());
    let removals = names.iter().map(plan).collect::<Result<Vec<_>>>()?;
    let bytes: u64 = removals.iter().map(Removal::bytes).sum();
    let list: Vec<String> = names.iter().map(ToString::to_string).collect();
    if !args.yes {
        if !ask::can_ask() {
            return Err(Error::usage("nobody can be asked whether to remove it")
                .at("rm")
                .hint(format!("`flux rm --yes {}` does not ask", list.join(" "))));
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
        say(&format!("{freed} bytes are free again"));
    }
    Ok(())
}

/// The names without those that others cover: the same once more, or a file of a model that is named as a whole.
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
