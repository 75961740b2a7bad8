//! An image to generate, one method for each option of its recipe.

use std::io;
use std::path::{Path, PathBuf};

use super::expand::{Expanded, Expander, Expansion};
use super::input_image::name_in_memory;
use super::{AdapterFile, EmbeddedFiles, Engine, Image, InputImage, InputSource, Job, Recipe, Ticket};
use crate::error::{Error, Field, Result};
use crate::input::is_stdin;
use crate::pipeline::{Embeddings, Latents};
use crate::sampler::random_seed;
use crate::stage::CancelFlag;

/// An image to generate or to edit, and its options. The model chooses omitted options.
///
/// [`Generation::run`] waits for the image; [`Generation::submit`] returns its events. Many threads may generate on
/// one engine, which combines waiting images into batches.
#[derive(Clone)]
#[must_use = "nothing is generated until `run` or `submit` is called"]
pub struct Generation<'e> {
    engine: &'e Engine,
    recipe: Recipe,
    /// Images and tensors in memory.
    files: EmbeddedFiles,
    /// The first file that could not be encoded.
    error: Option<Error>,
    expansion: Option<Expansion>,
    embeds_inputs: bool,
    previews: bool,
    cancel: CancelFlag,
}

impl Engine {
    /// Starts generating an image from a prompt.
    ///
    /// ```no_run
    /// # let flux = flux::Engine::built_in().open()?;
    /// let image = flux.generate("a ghost").size(768, 512).seed(1).run()?;
    /// image.save("ghost.png")?;
    /// # Ok::<(), flux::Error>(())
    /// ```
    pub fn generate(&self, prompt: impl Into<String>) -> Generation<'_> {
        self.generate_recipe(Recipe::new(prompt, random_seed()))
    }

    /// Starts editing an image: the model sees it as a reference, and follows the prompt. The result has the
    /// proportions of the image. [`Generation::mask`] and [`Generation::strength`] edit a part of the image, or keep
    /// more of it.
    ///
    /// ```no_run
    /// # let flux = flux::Engine::built_in().open()?;
    /// let ghost = flux.generate("a ghost").run()?;
    /// flux.edit("make it blue", &ghost).run()?.save("blue.png")?;
    /// flux.edit("make it a robot", "photo.jpg").run()?.save("robot.png")?;
    /// # Ok::<(), flux::Error>(())
    /// ```
    pub fn edit(&self, prompt: impl Into<String>, image: impl Into<InputImage>) -> Generation<'_> {
        self.generate(prompt).reference(image)
    }

    /// Starts generating the image of a recipe, such as [`ImageRecipe::recipe`](super::ImageRecipe::recipe) of another
    /// image. The seed is that of the recipe.
    pub fn generate_recipe(&self, recipe: Recipe) -> Generation<'_> {
        Generation {
            engine: self,
            recipe,
            files: EmbeddedFiles::new(),
            error: None,
            expansion: None,
            embeds_inputs: false,
            previews: false,
            cancel: CancelFlag::default(),
        }
    }
}

impl Generation<'_> {
    /// Sets the size in pixels.
    pub fn size(self, width: usize, height: usize) -> Self {
        self.configure(|recipe| (recipe.width, recipe.height) = (Some(width), Some(height)))
    }

    /// Sets the seed of the noise: the same seed gives the same image. The default is a random seed, which
    /// [`Image::recipe`] has.
    pub fn seed(self, seed: u64) -> Self {
        self.configure(|recipe| recipe.seed = seed)
    }

    /// Sets the number of denoising steps.
    pub fn steps(self, steps: usize) -> Self {
        self.configure(|recipe| recipe.steps = Some(steps))
    }

    /// Sets the guidance scale, the strength of the prompt.
    pub fn guidance(self, guidance: f32) -> Self {
        self.configure(|recipe| recipe.guidance = Some(guidance))
    }

    /// Sets the negative prompt.
    pub fn negative_prompt(self, prompt: impl Into<String>) -> Self {
        self.configure(|recipe| recipe.negative = Some(prompt.into()))
    }

    /// Adds an adapter (LoRA): a file, or a PEFT folder. A strength of 1 is that of its training.
    pub fn adapter(self, file: impl AsRef<Path>, strength: f32) -> Self {
        self.configure(|recipe| recipe.adapters.push(AdapterFile::new(file.as_ref(), strength)))
    }

    /// Adds a reference image. The first one is the image to edit.
    pub fn reference(mut self, image: impl Into<InputImage>) -> Self {
        let name = self.name(image.into());
        self.configure(|recipe| recipe.inputs.extend(name))
    }

    /// Regenerates only the white area of a mask in the image to edit.
    pub fn mask(mut self, mask: impl Into<InputImage>) -> Self {
        let name = self.name(mask.into());
        self.configure(|recipe| recipe.mask = name)
    }

    /// Sets noise in place of the seed's noise, for as many images as are generated.
    pub fn noise(mut self, noise: &Latents) -> Self {
        let name = self.name_tensors("noise", noise.encode());
        self.configure(|recipe| recipe.noise = name)
    }

    /// Sets latents for the first step to begin with.
    pub fn latents(mut self, latents: &Latents) -> Self {
        let name = self.name_tensors("latents", latents.encode());
        self.configure(|recipe| recipe.latents = name)
    }

    /// Sets text features in place of a prompt, which must be empty.
    pub fn embeddings(mut self, embeddings: &Embeddings) -> Self {
        let name = self.name_tensors("embeddings", embeddings.encode());
        self.configure(|recipe| recipe.embeddings = name)
    }

    /// Adds files in memory, by their names in the recipe.
    pub fn with_files(mut self, files: EmbeddedFiles) -> Self {
        self.files.extend(files);
        self
    }

    /// Returns the files in memory, by their names in the recipe.
    pub fn files(&self) -> &EmbeddedFiles {
        &self.files
    }

    /// Sets the strength of the change to the image to edit, from 0 to 1.
    pub fn strength(self, strength: f64) -> Self {
        self.configure(|recipe| recipe.strength = Some(strength))
    }

    /// Changes any other field of the recipe.
    ///
    /// ```no_run
    /// use flux::engine::{Hires, Resize, Transparency};
    ///
    /// # let flux = flux::Engine::built_in().open()?;
    /// let hires = Hires { size: Some(Resize::Longest(1024)), ..Hires::default() };
    /// let ghost = flux.generate("a ghost").configure(|recipe| recipe.hires = Some(hires)).run()?;
    /// let cut = flux.generate("a ghost").configure(|recipe| recipe.transparent = Transparency::Edit).run()?;
    /// # Ok::<(), flux::Error>(())
    /// ```
    pub fn configure(mut self, change: impl FnOnce(&mut Recipe)) -> Self {
        change(&mut self.recipe);
        self
    }

    /// Expands the prompt, or the template of the recipe: each image gets words of its own.
    ///
    /// ```no_run
    /// # let flux = flux::Engine::built_in().open()?;
    /// let hearts = flux.generate("a {red|blue} heart").expand(Default::default()).run_many(4)?;
    /// # Ok::<(), flux::Error>(())
    /// ```
    pub fn expand(mut self, expansion: Expansion) -> Self {
        self.expansion = Some(expansion);
        self
    }

    /// Embeds the input images in the file of the result, which can then be reproduced without them.
    pub fn embed_inputs(mut self) -> Self {
        self.embeds_inputs = true;
        self
    }

    /// Sends a small preview of each step with the events of [`Generation::submit`].
    pub fn previews(mut self) -> Self {
        self.previews = true;
        self
    }

    /// Sets the flag that cancels the work, when it is set on another thread.
    pub fn cancel_flag(mut self, flag: &CancelFlag) -> Self {
        self.cancel = flag.clone();
        self
    }

    /// Generates the image, and waits for it. Async code calls this on a thread for blocking work.
    ///
    /// Errors as [`Generation::submit`], and if the work fails or is cancelled.
    pub fn run(self) -> Result<Image> {
        self.run_many(1)?.pop().ok_or_else(|| Error::new("the engine stopped before the image was finished"))
    }

    /// Generates `count` images with consecutive seeds, and waits for them.
    ///
    /// Errors as [`Generation::run`].
    pub fn run_many(self, count: usize) -> Result<Vec<Image>> {
        self.submit_many(count)?.wait()
    }

    /// Submits the image. The ticket yields [events](super::Event): progress, previews if requested, and the image.
    /// Dropping the ticket cancels the work.
    ///
    /// Errors if the model cannot do what is requested, or if a file cannot be read. [`Error::field`] is the option to
    /// change.
    pub fn submit(self) -> Result<Ticket> {
        self.submit_many(1)
    }

    /// Submits `count` images with consecutive seeds.
    ///
    /// Errors as [`Generation::submit`].
    pub fn submit_many(self, count: usize) -> Result<Ticket> {
        let engine = self.engine;
        engine.submit(self.into_job(count)?)
    }

    /// Returns the job for `count` images, to set further options, such as its priority, before [`Engine::submit`].
    ///
    /// Errors if an option is wrong by itself, or if a file cannot be read.
    pub fn into_job(self, count: usize) -> Result<Job> {
        let Self { engine, recipe, files, error, expansion, embeds_inputs, previews, cancel } = self;
        error.map_or(Ok(()), Err)?;
        let Expanded { recipe, count, words } = match expansion {
            Some(expansion) => {
                Expander::new(&expansion).expand(&recipe, count).map_err(|e| e.for_field(Field::Prompt))?
            }
            None => Expanded::plain(recipe, count),
        };
        if let Some((field, _)) = recipe.files().find(|(_, file)| is_stdin(file) && !files.contains_key(*file)) {
            return Err(Error::usage("`-` is standard input, which the library does not read")
                .for_field(field)
                .hint("pass the bytes of the image, or a file name"));
        }
        let mut none = io::empty();
        let source = InputSource {
            embedded: files,
            keeps: embeds_inputs,
            cancel: cancel.clone(),
            ..InputSource::new(&mut none)
        };
        Ok(Job { words: words.into(), previews, cancel, ..engine.job_from(&recipe, count, source)? })
    }

    /// Returns the name of tensors in the recipe, and keeps their bytes; `None` if there are none.
    fn name_tensors(&mut self, kind: &str, bytes: Result<Vec<u8>>) -> Option<PathBuf> {
        match bytes {
            Ok(bytes) => {
                let name = name_in_memory(kind, "safetensors", &bytes);
                self.files.insert(name.clone(), bytes);
                Some(name)
            }
            Err(error) => {
                self.error.get_or_insert(error);
                None
            }
        }
    }

    /// Returns the name of an image in the recipe, and keeps its bytes; `None` if it has none.
    fn name(&mut self, image: InputImage) -> Option<PathBuf> {
        match image.named() {
            Ok((name, bytes)) => {
                self.files.extend(bytes.map(|bytes| (name.clone(), bytes)));
                Some(name)
            }
            Err(error) => {
                self.error.get_or_insert(error);
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::Poll;
    use std::thread;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::engine::choice::Device;
    use crate::engine::{Event, ImageRecipe};
    use crate::error::ErrorKind;
    use crate::files::Array;
    use crate::output::ImageFormat;
    use crate::rgb::{Rgb, RgbImage};

    fn tiny() -> Engine {
        Engine::builder("models/tiny").device(Device::Cpu).open().unwrap()
    }

    fn small<'e>(engine: &'e Engine, prompt: &str) -> Generation<'e> {
        engine.generate(prompt).size(32, 32).steps(1)
    }

    fn recipe(prompt: &str, seed: u64) -> Recipe {
        Recipe { width: Some(32), height: Some(32), steps: Some(1), ..Recipe::new(prompt, seed) }
    }

    /// Returns the PNGs of a recipe's job.
    fn files(engine: &Engine, recipe: &Recipe, count: usize) -> Vec<Vec<u8>> {
        let images = engine.submit(engine.job(recipe, count, &mut io::empty()).unwrap()).unwrap().wait().unwrap();
        images.iter().map(|image| image.encode(ImageFormat::Png).unwrap()).collect()
    }

    fn shared<T: Send + Sync>(value: T) -> T {
        value
    }

    #[test]
    fn a_generation_gives_the_files_of_its_recipe() {
        let engine = shared(tiny());
        let image = small(&engine, "a cat").seed(7).run().unwrap();
        assert_eq!(vec![image.encode(ImageFormat::Png).unwrap()], files(&engine, &recipe("a cat", 7), 1));
        let images = small(&engine, "a dog").seed(3).run_many(3).unwrap();
        let images: Vec<_> = images.iter().map(|image| image.encode(ImageFormat::Png).unwrap()).collect();
        assert_eq!(images, files(&engine, &recipe("a dog", 3), 3));
        let again = engine.generate_recipe(image.recipe().unwrap().recipe).run().unwrap();
        assert_eq!(again.rgb, image.rgb);
        let pixels = image.to_rgb_image().unwrap();
        assert_eq!((pixels.dimensions(), pixels.as_raw()), ((32, 32), &image.rgb.bytes));
    }

    #[test]
    fn every_option_is_a_field_of_the_recipe() {
        let engine = tiny();
        let generation = engine
            .generate("a cat")
            .size(64, 48)
            .seed(7)
            .steps(3)
            .guidance(2.5)
            .negative_prompt("a dog")
            .adapter("style.safetensors", 0.5)
            .reference("a.png")
            .mask("mask.png")
            .strength(0.4)
            .configure(|recipe| recipe.feather = 4);
        let expected = Recipe {
            width: Some(64),
            height: Some(48),
            steps: Some(3),
            guidance: Some(2.5),
            negative: Some("a dog".to_string()),
            adapters: vec![AdapterFile::new("style.safetensors", 0.5)],
            inputs: vec!["a.png".into()],
            mask: Some("mask.png".into()),
            strength: Some(0.4),
            feather: 4,
            ..Recipe::new("a cat", 7)
        };
        assert_eq!(generation.recipe, expected);
    }

    #[test]
    fn without_a_seed_images_differ_and_their_recipes_have_it() {
        let engine = tiny();
        let [one, other] = ["a cat"; 2].map(|prompt| small(&engine, prompt).run().unwrap());
        assert_ne!(one.plan.seed, other.plan.seed, "one of 2^32");
        assert_eq!(one.recipe().unwrap().recipe.seed, one.plan.seed);
    }

    #[test]
    fn an_image_in_memory_is_edited_as_its_file_is() {
        let (engine, folder) = (tiny(), tempfile::tempdir().unwrap());
        let image = small(&engine, "a cat").size(64, 64).seed(7).run().unwrap();
        let file = folder.path().join("cat.png");
        image.save(&file).unwrap();
        let edited = |input: InputImage| engine.edit("a blue cat", input).seed(1).steps(1).run().unwrap();
        let expected = edited(InputImage::from(&file));
        let digest = |made: &ImageRecipe| made.digests.values().cloned().collect::<Vec<_>>();
        let own = digest(&expected.recipe().unwrap());
        let (pixels, bytes) = (image.to_rgb_image().unwrap(), std::fs::read(&file).unwrap());
        for (input, has_digest) in [
            (InputImage::from(&image), true),
            (InputImage::from_bytes(bytes), true),
            (InputImage::from(&image.rgb), false),
            (InputImage::from(pixels), false),
        ] {
            let same = edited(input);
            let made = same.recipe().unwrap();
            assert_eq!(same.rgb, expected.rgb);
            assert_eq!(digest(&made) == own, has_digest);
            let name = made.recipe.inputs[0].to_string_lossy().into_owned();
            assert!(name.starts_with("image-") && name.ends_with(".png"), "{name}");
        }
        let carried = engine.edit("a blue cat", &image).seed(1).steps(1).embed_inputs().run().unwrap();
        assert_eq!(carried.recipe().unwrap().embedded_files().unwrap().len(), 1);
    }

    #[test]
    fn latents_in_memory_are_those_of_a_file() {
        let engine = tiny();
        let channels = engine.info().transformer.in_channels;
        let values = (0..channels * 4).map(|i| (i % 7) as f32 - 3.0).collect();
        let noise = Latents::new(Array::new(vec![channels, 2, 2], values).unwrap()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("noise.safetensors");
        std::fs::write(&file, noise.encode().unwrap()).unwrap();
        let expected = small(&engine, "a cat").configure(|recipe| recipe.noise = Some(file)).run().unwrap();
        let generation = small(&engine, "a cat").noise(&noise);
        let files = generation.files().clone();
        let image = generation.run().unwrap();
        assert_eq!(image.rgb, expected.rgb);
        let made = image.recipe().unwrap();
        let digests = |made: &ImageRecipe| made.digests.values().cloned().collect::<Vec<_>>();
        assert_eq!(digests(&made), digests(&expected.recipe().unwrap()));
        let again = engine.generate_recipe(made.recipe.clone()).with_files(files).run().unwrap();
        assert_eq!(again.rgb, image.rgb);
        let error = engine.generate_recipe(made.recipe).run().unwrap_err();
        assert!(error.to_string().contains("noise-"), "{error}");
    }

    #[test]
    fn a_wait_for_events_ends_in_time() {
        let engine = tiny();
        let mut events = small(&engine, "a cat").steps(1000).submit().unwrap().in_order();
        while events.next_within(Duration::ZERO).is_ready() {}
        let start = Instant::now();
        while matches!(events.next_within(Duration::from_millis(1)), Poll::Ready(Some(Ok(_)))) {}
        assert!(start.elapsed() < Duration::from_secs(20));
        events.cancel();
        let last = std::iter::repeat_with(|| events.next_within(Duration::from_secs(20)))
            .find(|event| !matches!(event, Poll::Ready(Some(Ok(_)))));
        let is_cancelled = |error: &Error| error.kind() == ErrorKind::Cancelled;
        assert!(matches!(last, Some(Poll::Ready(Some(Err(error)))) if is_cancelled(&error)));
        assert!(matches!(events.next_within(Duration::ZERO), Poll::Ready(None)));
    }

    #[test]
    fn a_mask_in_memory_keeps_the_rest_of_the_image() {
        let engine = tiny();
        let image = Rgb { width: 64, height: 64, bytes: (0..3 * 64 * 64).map(|i| (i % 251) as u8).collect() };
        let mask =
            RgbImage::from_raw(64, 64, (0..3 * 64 * 64).map(|i| if i / 3 % 64 < 32 { 255 } else { 0 }).collect());
        let edited = engine
            .edit("a star", &image)
            .mask(mask.unwrap())
            .seed(1)
            .steps(1)
            .run()
            .unwrap()
            .pixels()
            .unwrap()
            .into_owned();
        let right = |image: &Rgb| image.bytes.chunks(3 * 64).flat_map(|row| row[3 * 32..].to_vec()).collect::<Vec<_>>();
        assert!(right(&edited) == right(&image) && edited != image);
    }

    #[test]
    fn an_option_that_cannot_be_is_named_by_its_field() {
        let engine = tiny();
        let generate = || small(&engine, "a cat");
        let broken = Rgb { width: 9, height: 9, bytes: Vec::new() };
        for (generation, field) in [
            (generate().steps(0), Some(Field::Steps)),
            (generate().mask("mask.png"), Some(Field::Mask)),
            (generate().strength(0.5), Some(Field::Strength)),
            (generate().reference("-"), Some(Field::Inputs)),
            (generate().reference("a.png").mask("-"), Some(Field::Mask)),
            (generate().configure(|recipe| recipe.sparse = true), Some(Field::Sparse)),
            (generate().reference(&broken), None),
        ] {
            let error = generation.run().unwrap_err();
            assert_eq!(error.field(), field, "{error}");
        }
        assert_eq!(generate().run_many(0).unwrap_err().field(), Some(Field::Count));
        let missing = engine.edit("a cat", "there-is-none.png").run().unwrap_err();
        assert!(missing.to_string().contains("there-is-none.png"), "{missing}");
    }

    #[test]
    fn events_end_with_the_image_and_dropping_them_cancels() {
        let engine = tiny();
        let events: Vec<_> =
            small(&engine, "a cat").steps(3).previews().submit().unwrap().map(Result::unwrap).collect();
        let count = |is: fn(&Event) -> bool| events.iter().filter(|event| is(event)).count();
        assert!(count(|event| matches!(event, Event::Progress(_))) > 3);
        assert_eq!(count(|event| matches!(event, Event::Image { .. })), 1);
        drop(small(&engine, "a cat").steps(1000).submit().unwrap());
        let start = Instant::now();
        while engine.stats().running + engine.stats().waiting > 0 && start.elapsed() < Duration::from_secs(20) {
            thread::sleep(Duration::from_millis(1));
        }
        assert_eq!((engine.stats().running, engine.stats().made), (0, 1));
        let flag = CancelFlag::default();
        flag.cancel();
        assert_eq!(small(&engine, "a cat").cancel_flag(&flag).run().unwrap_err().kind(), ErrorKind::Cancelled);
    }
}
