//! `flux convert`: a transformer or text encoder as one file in another format.

use std::time::Instant;

use flux::Result;
use flux::files::Role;
use flux::model::{Conversion, Converted};

use super::json::print_object;
use super::signals::Signals;
use super::{claims, names, shown_as};
use crate::cli::{ComponentChoice, Convert};
use flux_runtime::progress::Console;

/// Writes the file. A signal stops the work and leaves no file.
pub fn run(args: &Convert, signals: &Signals) -> Result<()> {
    let start = Instant::now();
    let role = args.component.map(|component| match component {
        ComponentChoice::Transformer => Role::Transformer,
        ComponentChoice::Text => Role::TextEncoder,
    });
    let conversion = Conversion::new(
        &names::model(&args.from)?,
        role,
        args.tokenizer.as_deref(),
        args.format.value,
        &args.to,
        args.no_clobber,
    )?;
    claims::check_conversion(args)?;
    signals.listen()?;
    let mut console = Console::new(args.quiet, false, shown_as(args.progress));
    args.format.notes.iter().for_each(|note| console.note(note));
    let done = conversion.write(&signals.cancel_flag(), &mut |progress| console.progress(progress))?;
    console.finish();
    let Converted { path, bytes, tensors, notes } = done;
    notes.iter().for_each(|note| console.note(note));
    let (megabytes, seconds) = (bytes as f64 / 1e6, start.elapsed().as_secs_f64());
    if args.json {
        return print_object(&serde_json::json!({
            "output": path.display().to_string(), "tensors": tensors, "bytes": bytes, "seconds": seconds,
        }));
    }
    console.info(&format!("wrote {}: {tensors} tensors, {megabytes:.1} MB, in {seconds:.1} s", path.display()));
    Ok(())
}
