//! What frames become: it may change between two of them.

use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use flux::engine::{Engine, Inputs, Job, Recipe};
use flux::error::Field;
use flux::files::adapter::AdapterUse;
use flux::input;
use flux::pipeline::{GivenReference, Latents, MAX_REFERENCES, Request, Reuse};
use flux::rgb::Rgb;
use flux::{Error, Result};
use serde::{Deserialize, Deserializer};

/// The size of frames for which is checked what is asked for before there are frames.
const USUAL_SIZE: [usize; 2] = [256, 256];

/// What a frame becomes.
#[derive(Debug, Clone)]
pub struct Setting {
    /// Its inputs are the references behind the frame.
    pub recipe: Recipe,
    references: Vec<Arc<GivenReference>>,
    adapters: Vec<AdapterUse>,
    /// Whether the model does not see frames that it changes, also where it changes none now.
    hides_frames: bool,
    /// The part of the image before with which the next one begins.
    pub feedback: f32,
    /// Whether there are frames, or words alone.
    pub has_frames: bool,
    /// Which tokens of a frame are those of an earlier one, where any are.
    reuse: Option<Reuse>,
    /// What is known of the stream.
    pub stream: Stream,
}

/// What holds for a whole stream, once it is known: no change changes it.
#[derive(Debug, Clone, Copy, Default)]
pub struct Stream {
    /// The size of frames.
    pub frames: Option<[usize; 2]>,
    /// The size of images.
    pub images: Option<[usize; 2]>,
    /// Lanes, each of which makes an image while the others do.
    pub lanes: Option<usize>,
}

/// What changes. What is left out stays.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Change {
    pub prompt: Option<String>,
    pub seed: Option<u64>,
    pub steps: Option<usize>,
    /// `null` has the frame as a reference again.
    #[serde(deserialize_with = "given")]
    pub strength: Option<Option<f64>>,
    pub feedback: Option<f32>,
    pub references: Option<Vec<PathBuf>>,
}

/// A value that is there, `null` too.
fn given<'de, T: Deserialize<'de>, D: Deserializer<'de>>(from: D) -> std::result::Result<Option<T>, D::Error> {
    T::deserialize(from).map(Some)
}

impl Setting {
    /// Reads the references of the recipe.
    ///
    /// Errors when one cannot be read, or something does not suit the others.
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

    /// The setting where some tokens of frames are those of an earlier one.
    ///
    /// Errors as [`Setting::new`].
    pub fn with_reuse(self, reuse: Option<Reuse>) -> Result<Self> {
        let setting = Self { reuse, ..self };
        setting.check().map(|()| setting)
    }

    /// The setting where frames have a size, if they have one from the beginning.
    pub fn of_frames(self, size: Option<[usize; 2]>) -> Self {
        Self { stream: Stream { frames: size, ..self.stream }, ..self }
    }

    /// The setting with the adapters of its recipe, opened.
    pub fn with_adapters(self, engine: &Engine) -> Result<Self> {
        Ok(Self { adapters: engine.adapters(&self.recipe)?, ..self })
    }

    /// The setting with a change.
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
        // How a change shows the image has no meaning without one.
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
            return Err(Error::usage(format!("{given} images are given beside the frame, expected at most {most}"))
                .of(Field::Inputs)
                .hint("leave some out"));
        }
        let is_alone = files.len() == 1 && !self.has_frames;
        let given = if is_alone { GivenReference::alone } else { GivenReference::of_several };
        let read = |file: &PathBuf| {
            let image = input::read(file).map_err(|e| e.of(Field::Inputs))?;
            Ok(Arc::new(given(image, file.display().to_string())))
        };
        let references = files.iter().map(read).collect::<Result<_>>()?;
        Ok(Self { recipe: Recipe { inputs: files.to_vec(), ..self.recipe }, references, ..self })
    }

    fn check(&self) -> Result<()> {
        if !(0.0..1.0).contains(&self.feedback) {
            return Err(Error::usage(format!("the feedback is {}, expected 0 to below 1", self.feedback))
                .hint("0.2 begins with a little of the image before, 0.6 with much"));
        }
        if self.recipe.strength.is_some() && !self.has_frames {
            return Err(Error::usage("`strength` is how far to go from a frame, and no frames are read")
                .of(Field::Strength)
                .hint("leave it out, or `--no-input`"));
        }
        let starts = [(self.recipe.strength.is_some(), "strength"), (self.feedback > 0.0, "feedback")];
        let given: Vec<_> = starts.iter().filter(|(given, _)| *given).map(|(_, name)| *name).collect();
        if let [first, second] = given[..] {
            return Err(Error::usage(format!("`{first}` and `{second}` both say what an image begins with"))
                .hint("leave one of them out"));
        }
        if let Some(lanes) = self.stream.lanes.filter(|lanes| *lanes > 1 && self.feedback > 0.0) {
            return Err(Error::usage(format!(
                "with `feedback` an image waits for the one before, and {lanes} devices make images in turn"
            ))
            .hint("begin with `--feedback`, or on one device, as with `--device cuda:0`"));
        }
        if let Some(reuse) = &self.reuse {
            reuse.check()?;
            if self.feedback > 0.0 {
                return Err(Error::usage(
                    "`reuse` and `feedback` do not go together: one keeps what did not change, and \
                                         with the other everything does",
                )
                .hint("leave one of them out"));
            }
        }
        self.whole_recipe().request().map(drop)
    }

    /// The recipe as `flux` has it, whose first input is the frame.
    fn whole_recipe(&self) -> Recipe {
        let frame = self.has_frames.then(|| PathBuf::from("-"));
        Recipe { inputs: frame.into_iter().chain(self.recipe.inputs.clone()).collect(), ..self.recipe.clone() }
    }

    /// The job that makes the image of a frame; `before` are the latents of the one before.
    ///
    /// Errors when the model cannot make it.
    pub fn job(&self, engine: &Engine, frame: Option<Rgb>, before: Option<&Latents>) -> Result<Job> {
        let recipe = self.whole_recipe();
        let inputs = match frame {
            Some(frame) => Inputs::of_frame(&recipe, frame, &self.references)?,
            None => Inputs::of_references(&recipe, &self.references),
        };
        let request = Request { adapters: self.adapters.clone(), reuse: self.reuse, ..inputs.apply(recipe.request()?) };
        let request = match before {
            Some(before) => engine.begin_with(request, before, self.feedback)?,
            None => request,
        };
        // Alone, it is the image that the same recipe makes elsewhere.
        Ok(Job { inputs: Arc::new(inputs), latents: self.feedback > 0.0, most_together: 1, ..Job::new(request, 1) })
    }

    /// The size of the image of a frame, by what the model makes of it.
    ///
    /// Errors as [`Setting::job`] and [`Engine::plan`].
    pub fn image_size(&self, engine: &Engine, frame: Option<Rgb>) -> Result<[usize; 2]> {
        let job = self.job(engine, frame, None)?;
        let plan = engine.plan(&job.request)?;
        Ok(job.inputs.finished_size([plan.width, plan.height]))
    }

    /// Errors when the model cannot make an image of the stream's frames, or it has another size than those before.
    pub fn check_with(&self, engine: &Engine) -> Result<()> {
        let [width, height] = self.stream.frames.unwrap_or(USUAL_SIZE);
        let frame = self.has_frames.then(|| Rgb { width, height, bytes: vec![0; 3 * width * height] });
        let size = self.image_size(engine, frame)?;
        match self.stream.images {
            Some(known) if known != size => {
                let [size, known] = [size, known].map(|[width, height]| format!("{width}x{height}"));
                Err(Error::usage(format!("images would be {size}, those before are {known}"))
                    .hint("a stream has images of one size: begin another one for this"))
            }
            _ => Ok(()),
        }
    }
}

/// The setting of the frames to come, which whoever shares it may change.
#[derive(Debug)]
pub struct Settings {
    state: Mutex<(u64, Arc<Setting>)>,
    changed: Condvar,
}

impl Settings {
    pub fn new(setting: Setting) -> Arc<Self> {
        Arc::new(Self { state: Mutex::new((0, Arc::new(setting))), changed: Condvar::new() })
    }

    fn state(&self) -> MutexGuard<'_, (u64, Arc<Setting>)> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// That of the next frame.
    pub fn now(&self) -> Arc<Setting> {
        Arc::clone(&self.state().1)
    }

    /// Has the next frame become something else, as `change` makes it of what holds now.
    ///
    /// Errors as `change`; then all stays as it is.
    pub fn change(&self, change: impl Fn(&Setting) -> Result<Setting>) -> Result<()> {
        loop {
            // It may read files, for which no frame waits.
            let before = self.now();
            let setting = Arc::new(change(&before)?);
            let mut state = self.state();
            // Of two changes at once, the second changes what the first made.
            if Arc::ptr_eq(&state.1, &before) {
                *state = (state.0 + 1, setting);
                self.changed.notify_all();
                return Ok(());
            }
        }
    }

    /// Tells what is known of the stream from now on, by what holds now. It is no change; one that is being checked is
    /// checked again.
    pub fn know(&self, know: impl FnOnce(&Setting) -> Stream) {
        let mut state = self.state();
        let stream = know(&state.1);
        state.1 = Arc::new(Setting { stream, ..(*state.1).clone() });
    }

    /// That of the next frame, by which the size of all images is known: at first `size` says what it makes of it.
    ///
    /// Errors as `size`.
    pub fn sized(&self, size: impl Fn(&Setting) -> Result<[usize; 2]>) -> Result<Arc<Setting>> {
        loop {
            let setting = self.now();
            if setting.stream.images.is_some() {
                return Ok(setting);
            }
            let size = size(&setting)?;
            let mut state = self.state();
            // One that was changed meanwhile may make images of another size.
            if Arc::ptr_eq(&state.1, &setting) {
                let stream = Stream { images: Some(size), ..setting.stream };
                state.1 = Arc::new(Setting { stream, ..(*setting).clone() });
            }
        }
    }

    /// How often it was changed; waits a while for more than `known` times.
    pub fn changes(&self, known: u64, within: Duration) -> u64 {
        let waits = |state: &mut (u64, Arc<Setting>)| state.0 <= known;
        self.changed.wait_timeout_while(self.state(), within, waits).unwrap_or_else(PoisonError::into_inner).0.0
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
                seen.lock().unwrap().push(setting.stream.frames);
                if setting.stream.frames.is_none() {
                    settings.know(|setting| Stream { frames: Some([64, 48]), ..setting.stream });
                }
                changed(setting, r#"{"seed": 8}"#)
            })
            .unwrap();
        assert_eq!(*seen.lock().unwrap(), [None, Some([64, 48])]);
        assert_eq!((settings.now().stream.frames, settings.now().recipe.seed), (Some([64, 48]), 8));
        assert_eq!(settings.changes(0, Duration::ZERO), 1, "what is known is no change");
    }

    #[test]
    fn the_size_of_images_is_that_of_the_setting_that_makes_the_first() {
        let settings = Settings::new(setting(None, 0.0).unwrap());
        let sizes = Mutex::new(vec![[32, 32], [64, 48]]);
        let sized = settings.sized(|_| {
            // Meanwhile it is changed, once.
            if sizes.lock().unwrap().len() == 2 {
                settings.change(|setting| changed(setting, r#"{"seed": 8}"#)).unwrap();
            }
            Ok(sizes.lock().unwrap().pop().unwrap())
        });
        let sized = sized.unwrap();
        assert_eq!((sized.stream.images, sized.recipe.seed), (Some([32, 32]), 8));
        assert!(Arc::ptr_eq(&settings.sized(|_| panic!("it is known")).unwrap(), &settings.now()));
    }

    #[test]
    fn feedback_begins_only_where_one_device_makes_images() {
        let settings = Settings::new(setting(None, 0.0).unwrap());
        let begin = || settings.change(|setting| changed(setting, r#"{"feedback": 0.3}"#));
        settings.know(|setting| Stream { lanes: Some(2), ..setting.stream });
        assert!(begin().unwrap_err().to_string().contains("2 devices make images in turn"));
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
            (r#"{"feedback": 1}"#, "expected 0 to below 1"),
            (r#"{"feedback": 0.5, "strength": 0.5}"#, "both say"),
            (r#"{"prompt": "a\u0007"}"#, "control character"),
            (r#"{"references": ["none.png"]}"#, "none.png"),
        ] {
            let error = changed(&from, json).unwrap_err().to_string();
            assert!(error.contains(words), "{json}: {error}");
        }
        let reuse = |feedback| {
            setting(None, feedback).unwrap().with_reuse(Some(Reuse { threshold: 0.02, refresh: 9 })).map(drop)
        };
        assert!(reuse(0.0).is_ok() && reuse(0.2).unwrap_err().to_string().contains("do not go together"));
        assert!(setting(Some(0.5), 0.5).is_err() && setting(None, f32::NAN).is_err());
    }
}
