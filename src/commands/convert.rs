//! `flux convert`: a transformer or text encoder as one file in another format.

use std::time::Instant;

use flux::Result;
use flux::files::Role;
use flux::model::{Conversion, Converted};

use super::signals::Signals;
use super::{claims, console};
use crate::cli::{ComponentChoice, Convert};

/// Writes the file. A signal ends the work and leaves none.
pub fn run(args: &Convert, signals: &Signals) -> Result<()> {
    let start = Instant::now();
    let role = args.component.map(|component| match component {
        ComponentChoice::Transformer => Role::Transformer,
        ComponentChoice::Text => Role::TextEncoder,
    });
    let conversion =
        Conversion::new(&args.from, role, args.tokenizer.as_deref(), args.format.value, &args.to, args.no_clobber)?;
    claims::of_conversion(args)?;
    signals.listen()?;
    let mut console = console(args.quiet, false, args.progress);
    args.format.notes.iter().for_each(|note| console.note(note));
    let done = conversion.write(&signals.cancel_flag(), &mut |progress| console.progress(progress))?;
    console.finish();
    let Converted { path, bytes, tensors, notes } = done;
    notes.iter().for_each(|note| console.note(note));
    let (megabytes, seconds) = (bytes as f64 / 1e6, start.elapsed().as_secs_f64());
    console.info(&format!("wrote {}: {tensors} tensors, {megabytes:.1} MB, in {seconds:.1} s", path.display()));
    Ok(())
}
