//! Settings of a live stream, which may change between frames.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use flux::engine::{Engine, Inputs, Job, Recipe};
use flux::error::Field;
use flux::files::adapter::AdapterUse;
use flux::input;
use flux::pipeline::{GivenReference, Latents, MAX_REFERENCES, Request, Reuse};
use flux::rgb::Rgb;
use flux::{Error, Result};
use parking_lot::{Condvar, Mutex};
use serde::{Deserialize, Deserializer};

/// The frame size for validation before the first frame.
const USUAL_SIZE: [usize; 2] = [256, 256];

/// The settings for generating an image from a frame.
#[derive(Debug, Clone)]
pub struct Setting {
    /// The recipe. Its inputs are the references after the frame.
    pub recipe: Recipe,
    references: Vec<Arc<GivenReference>>,
    adapters: Vec<AdapterUse>,
    /// True if the model does not see edited frames as references. Kept even while frames are not edited.
    hides_frames: bool,
    /// The weight of the previous image in the next one's start.
    pub feedback: f32,
    /// True if there are frames, false for generation from prompts alone.
    pub has_frames: bool,
    /// The reuse of earlier frames' tokens, if enabled.
    reuse: Option<Reuse>,
    /// The known properties of the stream.
    pub stream: Stream,
}

/// Properties that are fixed for a whole stream once known.
#[derive(Debug, Clone, Copy, Default)]
pub struct Stream {
    /// The size of frames.
    pub frames: Option<[usize; 2]>,
    /// The size of images.
    pub images: Option<[usize; 2]>,
    /// The number of lanes, which generate images in parallel.
    pub lanes: Option<usize>,
}

/// A change of settings. Missing fields keep their value.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Change {
    pub prompt: Option<String>,
    pub seed: Option<u64>,
    pub steps: Option<usize>,
    /// `null` uses the frame as a reference again.
    #[serde(deserialize_with = "given")]
    pub strength: Option<Option<f64>>,
    pub feedback: Option<f32>,
    pub references: Option<Vec<PathBuf>>,
}

/// Deserializes a field that is present, including `null`.
fn given<'de, T: Deserialize<'de>, D: Deserializer<'de>>(from: D) -> std::result::Result<Option<T>, D::Error> {
    T::deserialize(from).map(Some)
}

impl Setting {
    /// Creates settings and reads the recipe's references.
    ///
    /// Errors when a reference cannot be read, or settings conflict.
    pub fn new(recipe: Recipe, feedback: f32, has_frames: bool) -> Result<Self> {
        let files = recipe.inputs.clone();
        let setting = Self {
            hides_frames: recipe.no_self_reference,
            recipe,
            references: Vec::new(),
            adapters: Vec::new(),
            feedback,
            has_frames,
            reuse: None,
            stream: Stream::default(),
        };
        let setting = setting.with_references(&files)?;
        setting.check().map(|()| setting)
    }

    /// Sets the reuse of earlier frames' tokens.
    ///
    /// Errors as [`Setting::new`].
    pub fn with_reuse(self, reuse: Option<Reuse>) -> Result<Self> {
        let setting = Self { reuse, ..self };
        setting.check().map(|()| setting)
    }

    /// Sets the size of frames, if it is known from the start.
    pub fn with_frame_size(self, size: Option<[usize; 2]>) -> Self {
        Self { stream: Stream { frames: size, ..self.stream }, ..self }
    }

    /// Opens the adapters of the recipe.
    pub fn with_adapters(self, engine: &Engine) -> Result<Self> {
        Ok(Self { adapters: engine.adapters(&self.recipe)?, ..self })
    }

    /// Applies a change.
    ///
    /// Errors as [`Setting::new`].
    pub fn changed(&self, change: Change) -> Result<Self> {
        let Change { prompt, seed, steps, strength, feedback, references } = change;
        let recipe = &self.recipe;
        let recipe = Recipe {
            prompt: prompt.unwrap_or_else(|| recipe.prompt.clone()),
            seed: seed.unwrap_or(recipe.seed),
            steps: steps.or(recipe.steps),
            strength: strength.unwrap_or(recipe.strength),
            ..recipe.clone()
        };
        // `no_self_reference` has no meaning without a strength.
        let no_self_reference = self.hides_frames && recipe.strength.is_some();
        let recipe = Recipe { no_self_reference, ..recipe };
        let feedback = feedback.unwrap_or(self.feedback);
        let setting = Self { recipe, feedback, ..self.clone() };
        let setting = references.map_or(Ok(setting.clone()), |files| setting.with_references(&files))?;
        setting.check().map(|()| setting)
    }

    fn with_references(self, files: &[PathBuf]) -> Result<Self> {
        let most = MAX_REFERENCES - usize::from(self.has_frames);
        if files.len() > most {
            let given = files.len();
            return Err(Error::usage(format!("{given} images were passed besides the frame, expected at most {most}"))
                .for_field(Field::Inputs)
                .hint("leave some out"));
        }
        let is_alone = files.len() == 1 && !self.has_frames;
        let given = if is_alone { GivenReference::alone } else { GivenReference::among_several };
        let read = |file: &PathBuf| {
            let image = input::read(file).map_err(|e| e.for_field(Field::Inputs))?;
            Ok(Arc::new(given(image, file.display().to_string())))
        };
        let references = files.iter().map(read).collect::<Result<_>>()?;
        Ok(Self { recipe: Recipe { inputs: files.to_vec(), ..self.recipe }, references, ..self })
    }

    fn check(&self) -> Result<()> {
        if !(0.0..1.0).contains(&self.feedback) {
            return Err(Error::usage(format!("the feedback is {}, expected 0 to below 1", self.feedback))
                .hint("use 0.2 to start with a little of the previous image, or 0.6 to start with much of it"));
        }
        if self.recipe.strength.is_some() && !self.has_frames {
            return Err(Error::usage("`strength` requires input frames, but no frames are read")
                .for_field(Field::Strength)
                .hint("leave out `strength` or `--no-input`"));
        }
        let starts = [(self.recipe.strength.is_some(), "strength"), (self.feedback > 0.0, "feedback")];
        let given: Vec<_> = starts.iter().filter(|(given, _)| *given).map(|(_, name)| *name).collect();
        if let [first, second] = given[..] {
            return Err(Error::usage(format!(
                "`{first}` cannot be used with `{second}`: both set the start of an image"
            ))
            .hint("leave one of them out"));
        }
        if let Some(lanes) = self.stream.lanes.filter(|lanes| *lanes > 1 && self.feedback > 0.0) {
            return Err(Error::usage(format!(
                "with `feedback` each image needs the previous one, but {lanes} devices generate images in turn"
            ))
            .hint("start with `--feedback`, or use one device, as in `--device cuda:0`"));
        }
        if let Some(reuse) = &self.reuse {
            reuse.check()?;
            if self.feedback > 0.0 {
                return Err(Error::usage(
                    "`reuse` cannot be used with `feedback`: with `feedback` every part of an image changes, so none \
                     can be reused",
                )
                .hint("leave one of them out"));
            }
        }
        self.whole_recipe().request().map(drop)
    }

    /// Returns the recipe as for `flux`, with the frame as first input.
    fn whole_recipe(&self) -> Recipe {
        let frame = self.has_frames.then(|| PathBuf::from("-"));
        Recipe { inputs: frame.into_iter().chain(self.recipe.inputs.clone()).collect(), ..self.recipe.clone() }
    }

    /// Returns the job for a frame; `before` are the previous image's latents.
    ///
    /// Errors when the model does not support the recipe.
    pub fn job(&self, engine: &Engine, frame: Option<Rgb>, before: Option<&Latents>) -> Result<Job> {
        let recipe = self.whole_recipe();
        let inputs = match frame {
            Some(frame) => Inputs::from_frame(&recipe, frame, &self.references)?,
            None => Inputs::from_references(&recipe, &self.references)?,
        };
        let request = Request { adapters: self.adapters.clone(), reuse: self.reuse, ..inputs.apply(recipe.request()?) };
        let request = match before {
            Some(before) => engine.begin_with(request, before, self.feedback)?,
            None => request,
        };
        // Not batched, so that the image equals one generated elsewhere with this recipe.
        Ok(Job { inputs: Arc::new(inputs), latents: self.feedback > 0.0, max_together: 1, ..Job::new(request, 1) })
    }

    /// Returns the size of the image that the model generates for a frame.
    ///
    /// Errors as [`Setting::job`] and [`Engine::plan`].
    pub fn image_size(&self, engine: &Engine, frame: Option<Rgb>) -> Result<[usize; 2]> {
        let job = self.job(engine, frame, None)?;
        let plan = engine.plan(&job.request)?;
        Ok(job.inputs.finished_size([plan.width, plan.height]))
    }

    /// Errors when the model cannot generate an image from the stream's frames, or the image size would change.
    pub fn check_with(&self, engine: &Engine) -> Result<()> {
        let [width, height] = self.stream.frames.unwrap_or(USUAL_SIZE);
        let frame = self.has_frames.then(|| Rgb { width, height, bytes: vec![0; 3 * width * height] });
        let size = self.image_size(engine, frame)?;
        match self.stream.images {
            Some(known) if known != size => {
                let [size, known] = [size, known].map(|[width, height]| format!("{width}x{height}"));
                Err(Error::usage(format!("the images would be {size}, but earlier images are {known}"))
                    .hint("start another stream: all images of a stream have the same size"))
            }
            _ => Ok(()),
        }
    }
}

/// The settings of upcoming frames, shared by all threads.
#[derive(Debug)]
pub struct Settings {
    state: Mutex<(u64, Arc<Setting>)>,
    changed: Condvar,
}

impl Settings {
    pub fn new(setting: Setting) -> Arc<Self> {
        Arc::new(Self { state: Mutex::new((0, Arc::new(setting))), changed: Condvar::new() })
    }

    /// Returns the settings of the next frame.
    pub fn now(&self) -> Arc<Setting> {
        Arc::clone(&self.state.lock().1)
    }

    /// Replaces the settings by the result of `change`, from the next frame on.
    ///
    /// Errors as `change`, without changing the settings.
    pub fn change(&self, change: impl Fn(&Setting) -> Result<Setting>) -> Result<()> {
        loop {
            // Runs without the lock, because `change` may read files, which must not delay frames.
            let before = self.now();
            let setting = Arc::new(change(&before)?);
            let mut state = self.state.lock();
            // If the settings were changed concurrently, the change is applied again to the new ones.
            if Arc::ptr_eq(&state.1, &before) {
                *state = (state.0 + 1, setting);
                self.changed.notify_all();
                return Ok(());
            }
        }
    }

    /// Updates known properties of the stream. This does not count as a change; a concurrent [`Settings::change`] is
    /// repeated.
    pub fn know(&self, know: impl FnOnce(&Setting) -> Stream) {
        let mut state = self.state.lock();
        let stream = know(&state.1);
        state.1 = Arc::new(Setting { stream, ..(*state.1).clone() });
    }

    /// Returns the settings of the next frame with a known image size, computed by `size` the first time.
    ///
    /// Errors as `size`.
    pub fn sized(&self, size: impl Fn(&Setting) -> Result<[usize; 2]>) -> Result<Arc<Setting>> {
        loop {
            let setting = self.now();
            if setting.stream.images.is_some() {
                return Ok(setting);
            }
            let size = size(&setting)?;
            let mut state = self.state.lock();
            // Settings that changed meanwhile may give another size.
            if Arc::ptr_eq(&state.1, &setting) {
                let stream = Stream { images: Some(size), ..setting.stream };
                state.1 = Arc::new(Setting { stream, ..(*setting).clone() });
            }
        }
    }

    /// Returns the number of changes. Waits up to `within` for more than `known` changes.
    pub fn changes(&self, known: u64, within: Duration) -> u64 {
        let mut state = self.state.lock();
        self.changed.wait_while_for(&mut state, |state| state.0 <= known, within);
        state.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setting(strength: Option<f64>, feedback: f32) -> Result<Setting> {
        Setting::new(Recipe { strength, ..Recipe::new("a cat", 7) }, feedback, true)
    }

    fn changed(from: &Setting, json: &str) -> Result<Setting> {
        from.changed(serde_json::from_str(json).map_err(|e| Error::usage(e.to_string()))?)
    }

    #[test]
    fn what_a_change_leaves_out_stays() {
        let first = setting(None, 0.25).unwrap();
        let second = changed(&first, r#"{"prompt": "a dog", "steps": 2}"#).unwrap();
        let Recipe { prompt, seed, steps, strength, .. } = &second.recipe;
        assert_eq!((&**prompt, *seed, *steps, *strength, second.feedback), ("a dog", 7, Some(2), None, 0.25));
        let third = changed(&second, r#"{"feedback": 0, "strength": 0.5}"#).unwrap();
        assert_eq!((third.recipe.strength, third.feedback), (Some(0.5), 0.0));
        let fourth = changed(&third, r#"{"strength": null, "seed": 8}"#).unwrap();
        assert_eq!((fourth.recipe.strength, fourth.recipe.seed, &*fourth.recipe.prompt), (None, 8, "a dog"));
    }

    #[test]
    fn a_change_is_checked_again_by_what_is_known_of_the_stream_meanwhile() {
        let settings = Settings::new(setting(None, 0.0).unwrap());
        let seen = Mutex::new(Vec::new());
        settings
            .change(|setting| {
                seen.lock().push(setting.stream.frames);
                if setting.stream.frames.is_none() {
                    settings.know(|setting| Stream { frames: Some([64, 48]), ..setting.stream });
                }
                changed(setting, r#"{"seed": 8}"#)
            })
            .unwrap();
        assert_eq!(*seen.lock(), [None, Some([64, 48])]);
        assert_eq!((settings.now().stream.frames, settings.now().recipe.seed), (Some([64, 48]), 8));
        assert_eq!(settings.changes(0, Duration::ZERO), 1, "stream properties are not a change");
    }

    #[test]
    fn the_size_of_images_is_that_of_the_setting_that_makes_the_first() {
        let settings = Settings::new(setting(None, 0.0).unwrap());
        let sizes = Mutex::new(vec![[32, 32], [64, 48]]);
        let sized = settings.sized(|_| {
            // A concurrent change, once.
            if sizes.lock().len() == 2 {
                settings.change(|setting| changed(setting, r#"{"seed": 8}"#)).unwrap();
            }
            Ok(sizes.lock().pop().unwrap())
        });
        let sized = sized.unwrap();
        assert_eq!((sized.stream.images, sized.recipe.seed), (Some([32, 32]), 8));
        assert!(Arc::ptr_eq(&settings.sized(|_| panic!("the size is already known")).unwrap(), &settings.now()));
    }

    #[test]
    fn feedback_begins_only_where_one_device_makes_images() {
        let settings = Settings::new(setting(None, 0.0).unwrap());
        let begin = || settings.change(|setting| changed(setting, r#"{"feedback": 0.3}"#));
        settings.know(|setting| Stream { lanes: Some(2), ..setting.stream });
        assert!(begin().unwrap_err().to_string().contains("2 devices"));
        assert_eq!(settings.now().feedback, 0.0);
        settings.know(|setting| Stream { lanes: Some(1), ..setting.stream });
        assert!(begin().is_ok() && settings.now().feedback > 0.0);
    }

    #[test]
    fn a_strength_that_comes_back_hides_the_frame_as_before() {
        let recipe = Recipe { strength: Some(0.5), no_self_reference: true, ..Recipe::new("a cat", 7) };
        let hidden = Setting::new(recipe, 0.0, true).unwrap();
        let shown = changed(&hidden, r#"{"strength": null}"#).unwrap();
        let again = changed(&shown, r#"{"strength": 0.6}"#).unwrap();
        assert_eq!([shown, again].map(|setting| setting.recipe.no_self_reference), [false, true]);
    }

    #[test]
    fn strength_without_frames_is_refused() {
        let words = Setting::new(Recipe::new("a cat", 7), 0.0, false).unwrap();
        let error = changed(&words, r#"{"strength": 0.5}"#).unwrap_err().to_string();
        assert!(error.contains("no frames are read"), "{error}");
        assert!(changed(&words, r#"{"strength": null, "seed": 8}"#).is_ok());
    }

    #[test]
    fn a_change_that_cannot_be_made_is_refused_and_told() {
        let from = setting(None, 0.0).unwrap();
        for (json, words) in [
            (r#"{"promt": "x"}"#, "promt"),
            (r#"{"feedback": 1}"#, "below 1"),
            (r#"{"feedback": 0.5, "strength": 0.5}"#, "`strength` cannot be used with `feedback`"),
            (r#"{"prompt": "a\u0007"}"#, "control character"),
            (r#"{"references": ["none.png"]}"#, "none.png"),
        ] {
            let error = changed(&from, json).unwrap_err().to_string();
            assert!(error.contains(words), "{json}: {error}");
        }
        let reuse = |feedback| {
            setting(None, feedback).unwrap().with_reuse(Some(Reuse { threshold: 0.02, refresh: 9 })).map(drop)
        };
        assert!(reuse(0.0).is_ok() && reuse(0.2).unwrap_err().to_string().contains("cannot be used with"));
        assert!(setting(Some(0.5), 0.5).is_err() && setting(None, f32::NAN).is_err());
    }
}
