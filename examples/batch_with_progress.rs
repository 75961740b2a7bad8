//! Generates images of several prompts, which the engine combines into batches, and prints their progress:
//! `cargo run --profile quick --example batch_with_progress`.

use std::path::Path;

use flux::{Device, Engine, Event, Ticket};

fn main() -> flux::Result<()> {
    batch_with_progress(".".as_ref())
}

/// Writes the images into `folder`.
pub fn batch_with_progress(folder: &Path) -> flux::Result<()> {
    let flux = Engine::built_in().device(Device::Auto).open()?;
    let prompts = ["a red heart", "a yellow star", "a ghost"];
    // All jobs wait in the engine before the first result is read. Dropping a ticket cancels its job.
    let submit = |prompt: &&str| flux.generate(*prompt).size(128, 128).seed(1).previews().submit();
    let tickets = prompts.iter().map(submit).collect::<flux::Result<Vec<Ticket>>>()?;
    for (prompt, ticket) in prompts.iter().zip(tickets) {
        for event in ticket {
            match event? {
                Event::Started { batch, .. } => println!("{prompt}: one of {batch} images in a batch"),
                Event::Preview { steps: [step, steps], .. } => println!("{prompt}: preview of step {step} of {steps}"),
                Event::Progress(progress) => {
                    println!("{prompt}: {:?} {} of {}", progress.stage, progress.done, progress.total);
                }
                Event::Image { image, .. } => image.save(folder.join(format!("{}.png", prompt.replace(' ', "-"))))?,
                _ => {}
            }
        }
    }
    Ok(())
}
