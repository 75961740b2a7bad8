//! The images of one command, from generation to the written files.

use std::mem;
use std::sync::Arc;
use std::time::Instant;

use flux::Result;
use flux::backend::Remark;
use flux::engine::expand::Words;
use flux::engine::{Engine, Event, Image, Inputs, Job, OfImages, OpeningTimes, Recipe};
use flux::error::named;
use flux::model::ModelInfo;
use flux::pipeline::{Plan, Request, Timings};
use flux::sampler::Rng;
use flux::stage::CancelFlag;

use super::destination::Destination;
use super::json::{ImageLine, print_object};
use super::print;
use super::screen::Screen;
use super::tensors::Tensors;
use crate::cli::{ConsoleArgs, TimingsFormat, flag};
use crate::report::{Report, peak_host_bytes};
use flux_runtime::progress::{Console, say};

/// A command's images to generate. Everything is validated except for properties that need the model.
pub struct Drawing<'a> {
    pub args: &'a ConsoleArgs,
    pub print_path: bool,
    /// True if files record in XMP that the images are AI-generated.
    pub provenance: bool,
    /// True if files contain no recipe.
    pub no_recipe: bool,
    pub seed_is_random: bool,
    /// The number of steps that was requested.
    pub steps: Option<usize>,
    /// The position of this image among the images of a file of latents or noise.
    pub of: Option<OfImages>,
    /// The position of this image in a batch, if only this image of the batch is written.
    pub batch: Option<OfImages>,
    /// The recipe to generate, also stored in the image files.
    pub recipe: Recipe,
    /// The words of each image, if images have prompts of their own.
    pub words: Arc<[Words]>,
    pub inputs: Arc<Inputs>,
    pub request: Request,
    /// One destination for each image.
    pub targets: Vec<Destination>,
    pub tensors: Tensors,
    /// The model's name.
    pub name: String,
    pub cancel: CancelFlag,
    /// When the program started.
    pub start: Instant,
}

/// An image that was written, for `--timings`.
struct Saved {
    output: String,
    plan: Plan,
    save_s: f64,
    total_s: f64,
}

impl Drawing<'_> {
    /// Generates the images and writes them. Each file is written as soon as its image is finished; files are reported
    /// in the order of the seeds. The index of each written image is pushed to `written`, even if an error follows.
    pub fn run(
        &self,
        engine: &Engine,
        console: &mut Console,
        screen: &mut Screen,
        written: &mut Vec<usize>,
    ) -> Result<()> {
        let count = self.targets.len();
        let devices = engine.devices(count);
        // With several devices, each line starts with the device's name.
        let on = |name: &str, text: &str| {
            if devices.len() == 1 { text.to_string() } else { format!("{name}: {text}") }
        };
        for (name, description) in &devices {
            console.detail(&format!("device: {}", on(name, description)));
        }
        engine.prefetch(&self.request, count)?;
        let plan = engine.plan(&self.request)?;
        self.announce(&plan, engine.info(), console);
        for (name, memory) in engine.memory_plans(&plan, count) {
            let memory = memory.map_err(|e| if devices.len() > 1 { e.on(&name) } else { e })?;
            memory.lines().iter().for_each(|line| console.detail(&on(&name, line)));
            memory.notes().iter().for_each(|note| console.note(&on(&name, note)));
        }
        let described = |group: &str| {
            let ranks = devices.iter().filter(|(name, _)| group.split('+').any(|rank| rank == name));
            ranks.map(|(name, description)| on(name, description)).collect::<Vec<_>>().join("; ")
        };
        let job = Job {
            inputs: Arc::clone(&self.inputs),
            recipe: Some(Arc::new(self.recipe.clone())),
            words: Arc::clone(&self.words),
            of: self.of,
            provenance: self.provenance,
            no_recipe: self.no_recipe,
            embeddings: self.tensors.wants_embeddings(),
            latents: self.tensors.wants_latents(),
            previews: screen.wants_steps(),
            cancel: self.cancel.clone(),
            ..match self.batch {
                Some(OfImages { place, count }) => {
                    let seed = self.request.seed - place as u64;
                    Job::new(Request { seed, ..self.request.clone() }, count)
                }
                None => Job::new(self.request.clone(), count),
            }
        };
        let wanted = |place: usize| match self.batch {
            Some(batch) => (place == batch.place).then_some(0),
            None => Some(place),
        };
        let mut saved = Vec::new();
        let (mut last, mut shown) = (0, None);
        for event in engine.submit(job)?.in_order() {
            match event? {
                // If several images are generated at once, only one of them is previewed.
                Event::Preview { place, image, .. }
                    if wanted(place).is_some() && shown.is_none_or(|shown| shown == place) =>
                {
                    shown = Some(place);
                    screen.step(&image, console)?;
                }
                Event::Started { images, remark, .. } => {
                    last = images.end;
                    remark.iter().for_each(|remark| console.detail(remark));
                    if count > 1 {
                        console.finish();
                        let batch = match images.len() {
                            1 => "one image without a batch".to_string(),
                            count => format!("{count} images as one batch"),
                        };
                        console.info(&batch);
                    }
                }
                Event::Progress(progress) => console.progress(progress),
                Event::Embeddings(embeddings) => {
                    self.tensors.write_embeddings(&embeddings, &self.request, &self.name)?;
                }
                Event::Image { place, image, latents } => {
                    let Some(place) = wanted(place) else { continue };
                    let seed = image.plan.seed;
                    shown = None;
                    screen.image(&*image.pixels()?, console)?;
                    let image = self.save(*image, place, written)?;
                    if place + 1 == last || self.batch.is_some() {
                        console.finish();
                    }
                    let prompt = self.words.get(place).map_or(&self.recipe.prompt, |words| &words.prompt);
                    // A language model may have written the prompt from the words.
                    let chosen = self.recipe.upsampled.as_ref().map_or(prompt, |before| &before.request);
                    let from = self.recipe.template.as_ref().map_or(String::new(), |_| format!(" from `{chosen}`"));
                    let line = format!("wrote {} in {:.1} s{from}", image.output, image.total_s);
                    self.print_saved(&line, &self.targets[place], console)?;
                    saved.push(image);
                    if let Some(latents) = latents {
                        let prompt = if self.words.is_empty() { &self.request.prompt } else { prompt };
                        self.tensors.write_latents(place, &latents, seed, prompt, &self.name)?;
                    }
                }
                Event::Finished { device, timings, .. } => {
                    self.report(mem::take(&mut saved), (&described(&device), engine.times()), &timings)?;
                }
                _ => {}
            }
        }
        for (name, remark) in engine.remarks(count) {
            match remark {
                Remark::Detail(text) => console.detail(&on(&name, &text)),
                Remark::Warning(text) => console.note(&on(&name, &text)),
            }
        }
        Ok(())
    }

    /// Prints the timings of a batch's images, for `--timings`.
    fn report(&self, saved: Vec<Saved>, (device, times): (&str, OpeningTimes), timings: &Timings) -> Result<()> {
        for Saved { output, plan, save_s, total_s } in &saved {
            let report = Report {
                output,
                model: &self.name,
                device,
                adapters: self.recipe.adapters.iter().map(Into::into).collect(),
                plan,
                tensors: (&self.recipe).into(),
                timings,
                device_s: times.device_s,
                open_s: times.open_s,
                quantize_s: times.quantize_s,
                save_s: *save_s,
                total_s: *total_s,
                peak_host_bytes: peak_host_bytes(),
            };
            match self.args.timings {
                Some(TimingsFormat::Text) => say(&report.text()),
                Some(TimingsFormat::Json) => print_object(&report)?,
                None => {}
            }
        }
        Ok(())
    }

    /// Prints the notes, seeds, size and number of steps before generation starts.
    fn announce(&self, plan: &Plan, info: &ModelInfo, console: &Console) {
        for note in self.inputs.notes().iter().chain(&plan.notes) {
            console.note(note);
        }
        let asked = self.steps.filter(|_| info.is_distilled);
        if let Some(note) = asked.and_then(|steps| steps_note(steps, info.default_steps, self.seed_is_random)) {
            console.note(&note);
        }
        let &Plan { width, height, steps, seed, .. } = plan;
        let last = self.words.last().map_or(seed + (self.targets.len() as u64 - 1), |words| words.seed);
        if let Some(note) = seed_note(seed, last).filter(|_| plan.rng == Rng::Torch) {
            console.note(&note);
        }
        let seeds = if last == seed { format!("seed {seed}") } else { format!("seeds {seed} to {last}") };
        if self.args.quiet && self.seed_is_random {
            say(&seeds); // without the random seed the image could not be reproduced
        }
        let steps = format!("{steps} {}", if steps == 1 { "step" } else { "steps" });
        let [last_width, last_height] = plan.output_size();
        let larger = plan.hires.as_ref().map_or(String::new(), |_| format!(" to {last_width}x{last_height}"));
        console.info(&format!("{seeds}, {width}x{height}{larger}, {steps}, model {}", self.name));
    }

    /// Writes an image.
    fn save(&self, image: Image, place: usize, written: &mut Vec<usize>) -> Result<Saved> {
        #[cfg(debug_assertions)]
        if self.args.panic_for_test {
            rayon::scope(|scope| scope.spawn(|_| panic!("`--panic-for-test`\nwas given")));
        }
        let (target, saving) = (&self.targets[place], Instant::now());
        target.write(&image)?;
        written.push(place);
        let save_s = saving.elapsed().as_secs_f64();

        let output = target.name();
        let total_s = self.start.elapsed().as_secs_f64();
        if self.args.json {
            let (seed, [width, height]) = (image.plan.seed, image.plan.output_size());
            let made = image.recipe();
            print_object(&ImageLine { output: &output, seed, width, height, seconds: total_s, made })?;
        }
        let mut plan = image.plan;
        plan.notes.iter_mut().for_each(|note| *note = named(note, flag));
        Ok(Saved { output, plan, save_s, total_s })
    }

    /// Prints the path of a written image.
    fn print_saved(&self, line: &str, target: &Destination, console: &Console) -> Result<()> {
        console.info(line);
        match target.path().filter(|_| self.print_path) {
            Some(path) => print(path.as_os_str().as_encoded_bytes()),
            None => Ok(()),
        }
    }
}

/// Returns a note if `steps` is far above `own`, the number of steps that the model was distilled to. The note also
/// points users to `-S`, because `-s` is the seed in other programs.
fn steps_note(steps: usize, own: usize, seed_is_random: bool) -> Option<String> {
    let seed = if seed_is_random { "; the flag for the seed is `-S`" } else { "" };
    (steps > 2 * own).then(|| format!("{steps} steps with a model that was distilled to {own}{seed}"))
}

/// Returns a note if seeds from `first` to `last` exceed 32 bits.
fn seed_note(first: u64, last: u64) -> Option<String> {
    let above = first.max(1 << 32);
    (above <= last).then(|| {
        let same = above as u32;
        format!("seed {above} generates the same image as seed {same}: seeds repeat after 2^32, as in the reference")
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io;
    use std::path::Path;

    use clap::Parser;
    use flux::backend::cpu::{Cpu, Precision};
    use flux::files::ModelFiles;
    use flux::model::OpenModel;

    use super::*;
    use crate::cli::Cli;
    use crate::commands::outputs::{DEFAULT_NAME, Named, Outputs};
    use flux_runtime::progress::Shown;

    /// Runs a command in `folder`, with `DIR` in the flags replaced by it. It uses `devices` groups of `world` CPU
    /// devices.
    fn draw(folder: &Path, [devices, world]: [usize; 2], flags: &str) -> Result<()> {
        fs::create_dir_all(folder).unwrap();
        let line = format!("flux -p cat -W 32 -H 32 -s 1 -q {flags}");
        let in_folder = line.replace("DIR", &folder.display().to_string());
        let args = Cli::try_parse_from(in_folder.split_whitespace()).unwrap_or_else(|e| panic!("{e}")).generate;
        args.check()?;
        let recipe = args.recipe(None, &mut io::empty())?;
        let request = recipe.request()?;
        let count = args.count as usize;
        let named = Named { seed: request.seed, count, prompt: "", words: &[], model: "tiny" };
        let outputs = Outputs::new(&args.output, &args.draw.recipe.tensors, DEFAULT_NAME, &named)?;
        let drawing = Drawing {
            inputs: Arc::default(),
            recipe,
            words: Arc::default(),
            targets: Destination::all(&outputs)?,
            tensors: Tensors::new(&outputs)?,
            args: &args.draw.console,
            print_path: false,
            provenance: true,
            no_recipe: false,
            seed_is_random: false,
            steps: None,
            of: None,
            batch: None,
            request,
            name: "tiny".to_string(),
            cancel: CancelFlag::default(),
            start: Instant::now(),
        };
        let groups = (0..devices).map(|group| {
            let ranks = Cpu::group(Precision::F32, world, Cpu::GROUP_LIMIT)?.into_iter().enumerate();
            Ok(ranks.map(|(rank, cpu)| (format!("cpu:{}", group * world + rank), cpu)).collect())
        });
        let groups = groups.collect::<Result<_>>()?;
        let model = OpenModel::open(&ModelFiles::open("../../models/tiny".as_ref())?)?;
        let console = &mut Console::new(true, false, Shown::Nothing);
        drawing.run(&Engine::on(groups, model)?, console, &mut Screen::default(), &mut Vec::new())
    }

    /// Returns names and bytes of the files in a folder. Headers of safetensors files are skipped: the order of their
    /// entries varies.
    fn files(folder: &Path) -> Vec<(String, Vec<u8>)> {
        let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let mut files: Vec<_> = entries
            .map(|path| {
                let (name, mut bytes) =
                    (path.file_name().unwrap().to_string_lossy().into_owned(), fs::read(&path).unwrap());
                if name.ends_with(".safetensors") {
                    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
                    bytes.drain(..8 + header);
                }
                (name, bytes)
            })
            .collect();
        files.sort();
        files
    }

    #[test]
    fn two_devices_write_the_files_of_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let words = "--save-embeddings DIR/words.safetensors";
        let two = "-S 7 -n 2 -o DIR/cat.png --save-latents DIR/cat.safetensors";
        draw(&path("two"), [2, 1], &format!("{two} {words}")).unwrap();
        for (seed, words) in [(7, words), (8, "")] {
            let one = format!("-S {seed} -o DIR/cat-{seed}.png --save-latents DIR/cat-{seed}.safetensors");
            draw(&path("one"), [1, 1], &format!("{one} {words}")).unwrap();
        }
        draw(&path("group"), [1, 2], &format!("{two} {words}")).unwrap();
        let (one, two) = (files(&path("one")), files(&path("two")));
        let names: Vec<_> = two.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["cat-7.png", "cat-7.safetensors", "cat-8.png", "cat-8.safetensors", "words.safetensors"]);
        assert!(one == two);
    }
}
