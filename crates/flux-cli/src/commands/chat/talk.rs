//! An interactive session: its settings, its images, and the effect of each line.

use std::fmt::Display;
use std::fs;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime};

use flux::engine::Recipe;
use flux::engine::choice::Device;
use flux::engine::expand::Expanded;
use flux::error::ErrorKind;
use flux::files::atomic;
use flux::input;
use flux::output::ImageFormat;
use flux::{Error, Result};

use super::line::{self, COMMANDS, Command, Line, Prompt};
use crate::cli::{Chat, OutputArgs, ProtocolChoice, Seed, flag};
use crate::commands::ahead::Ahead;
use crate::commands::names;
use crate::commands::print;
use crate::commands::show::terminal;
use crate::commands::signals::Signals;
use crate::commands::source::Source;
use crate::commands::studio::{Studio, Wanted};
use flux_runtime::progress::say;

/// An image of the session.
struct Picture {
    path: PathBuf,
    prompt: String,
    /// `None` for a loaded image.
    drawn: Option<Drawn>,
}

/// Properties of an image that was generated in this session. Only such an image's file may be removed.
struct Drawn {
    seed: u64,
    /// The number of the line that generated the image, possibly with others.
    set: usize,
    /// The file's stamp when it was written.
    stamp: Option<Stamp>,
}

/// The size and modification time, to detect a changed file.
type Stamp = (u64, SystemTime);

fn stamp(path: &Path) -> Option<Stamp> {
    let metadata = fs::symlink_metadata(path).ok()?;
    Some((metadata.len(), metadata.modified().ok()?))
}

/// The state of the session after a line.
#[derive(Debug, PartialEq, Eq)]
pub enum Next {
    GoOn,
    Quit,
}

/// An interactive session.
pub struct Talk<'a> {
    args: &'a Chat,
    signals: &'a Signals,
    studio: Studio<'a>,
    /// The settings of the next images, without prompt and input images.
    recipe: Recipe,
    /// `None` if each image gets a random seed.
    seed: Option<u64>,
    /// Settings that apply only to prompts with an input image.
    mask: Option<PathBuf>,
    strength: Option<f64>,
    pictures: Vec<Picture>,
    last: Option<Prompt>,
    /// The number of lines that generated images, and so the number of the last set.
    sets: usize,
    failed: usize,
}

impl<'a> Talk<'a> {
    /// Errors when the strength of an adapter is not a number.
    pub fn new(args: &'a Chat, signals: &'a Signals, start: Instant) -> Result<Self> {
        let recipe = args.draw.recipe.apply(Recipe::default())?;
        let seed = args.draw.recipe.seed.filter(|seed| !seed.is_random()).map(Seed::value);
        let (mask, strength) = (recipe.mask.clone(), recipe.strength);
        let mut talk = Self {
            args,
            signals,
            studio: Studio::new(&args.draw, &args.show, signals, start).without_signals(),
            recipe: Recipe { inputs: Vec::new(), mask: None, strength: None, ..recipe.clone() },
            seed,
            mask,
            strength,
            pictures: Vec::new(),
            last: None,
            sets: 0,
            failed: 0,
        };
        recipe.inputs.iter().try_for_each(|file| talk.load(file))?;
        if let Some(seed) = talk.seed {
            talk.print_setting(&format!("seed {seed} for all images; `!seed` sets a random seed for each"));
        }
        Ok(talk)
    }

    /// Returns the prompt shown before a line.
    pub fn prompt(&self) -> String {
        format!("{}> ", self.pictures.len() + 1)
    }

    /// Returns an encoder for prompts while they are typed, with the current settings.
    pub fn ahead(&self) -> Option<Ahead> {
        // The words of a template depend on the seed.
        self.studio.ahead(&self.recipe).filter(|_| !self.args.draw.recipe.expand.is_on())
    }

    /// Returns the number of failed lines.
    pub fn failed(&self) -> usize {
        self.failed
    }

    /// Ends the session and releases the model's memory.
    pub fn end(self) {
        self.studio.end();
    }

    /// Runs a line and reports its errors.
    ///
    /// Errors when a signal ends the program.
    pub fn run_line(&mut self, line: &str) -> Result<Next> {
        let done = match line::read(line) {
            Ok(Line::Nothing) => Ok(Next::GoOn),
            Ok(Line::Prompt(prompt)) => self.draw(prompt, 1).map(|()| Next::GoOn),
            Ok(Line::Command(command)) => self.obey(command),
            Err(wrong) => Err(Error::usage(wrong)),
        };
        match done {
            Err(error) if error.kind() == ErrorKind::Cancelled => {
                if !self.signals.reset() {
                    return Err(error);
                }
                say("cancelled");
                Ok(Next::GoOn)
            }
            Err(error) => {
                self.print_error(&error);
                Ok(Next::GoOn)
            }
            done => done,
        }
    }

    /// Prints the error of a line.
    pub fn print_error(&mut self, error: &Error) {
        self.failed += 1;
        say(&format!("error: {}", error.shown_with(flag)));
    }

    fn obey(&mut self, command: Command) -> Result<Next> {
        match command {
            Command::Help => help(),
            Command::Quit => return Ok(Next::Quit),
            Command::Seed(seed) => {
                self.seed = seed;
                self.print_setting(&match seed {
                    Some(seed) => format!("seed {seed} for the next images, until `!seed`"),
                    None => "a random seed for each image".to_string(),
                });
            }
            Command::Size(size) => {
                (self.recipe.width, self.recipe.height) = (size.map(|size| size[0]), size.map(|size| size[1]));
                self.print_value("size", size.map(|[width, height]| format!("{width}x{height}")));
            }
            Command::Steps(steps) => {
                self.recipe.steps = steps;
                self.print_value("steps", steps);
            }
            Command::Guidance(guidance) => {
                self.recipe.guidance = guidance;
                self.print_value("guidance", guidance);
            }
            Command::Schedule(schedule) => {
                self.print_setting(&format!("schedule {schedule} for the next images"));
                self.recipe.schedule = schedule;
            }
            Command::Negative(negative) => {
                self.print_value("negative", negative.as_ref());
                self.recipe.negative = negative;
            }
            Command::Lora(Some(used)) => {
                names::existing_adapter(&used.file)?;
                self.recipe.adapters.push(used);
                self.print_setting(&format!(
                    "{} adapters for the next images, until `!lora`",
                    self.recipe.adapters.len()
                ));
            }
            Command::Lora(None) => {
                self.recipe.adapters.clear();
                self.print_setting("no adapters for the next images");
            }
            Command::Mask(mask) => {
                self.print_edit_value("mask", mask.as_ref());
                self.mask = mask.map(PathBuf::from);
            }
            Command::Region(Some(region)) => {
                self.recipe.regions.push(region);
                let count = self.recipe.regions.len();
                self.print_setting(&format!("{count} regions for the next images, until `!region`"));
            }
            Command::Region(None) => {
                self.recipe.regions.clear();
                self.print_setting("no regions for the next images");
            }
            Command::Strength(strength) => {
                self.strength = strength;
                self.print_edit_value("strength", strength);
            }
            Command::Upsample(is_on) => {
                self.studio.upsample(is_on)?;
                let not = if is_on { "" } else { "not " };
                self.print_setting(&format!("a language model does {not}write the next prompts"));
            }
            Command::Device(device) => {
                let choice: Device = device.parse().map_err(|e: String| Error::usage(e).at("!device"))?;
                self.studio.use_device(choice);
                self.print_setting(&format!("device {device} for the next images"));
            }
            Command::Show(number) => self.show(number)?,
            Command::List => self.list(),
            Command::Save(file, number) => self.save(Path::new(&file), number)?,
            Command::Load(file) => self.load(Path::new(&file))?,
            Command::Explore(count) => self.draw_again(count)?,
            Command::Again => self.draw_again(1)?,
            Command::Keep(number) => self.keep(number)?,
            Command::Undo => self.undo()?,
        }
        Ok(Next::GoOn)
    }

    /// Prints a changed setting, unless the session is quiet.
    fn print_setting(&self, text: &str) {
        if !self.args.draw.console.quiet {
            say(&flux::error::shown(text));
        }
    }

    fn print_value(&self, name: &str, value: Option<impl Display>) {
        self.print_setting(&match value {
            Some(value) => format!("{name} {value} for the next images, until `!{name}`"),
            None => format!("the model's default {name} for the next images"),
        });
    }

    /// [`Talk::print_value`] for settings that apply only to prompts with an input image.
    fn print_edit_value(&self, name: &str, value: Option<impl Display>) {
        self.print_setting(&match value {
            Some(value) => format!("{name} {value} for prompts with an image, until `!{name}`"),
            None => format!("no {name} for the next images"),
        });
    }

    /// Prints the numbers of images.
    fn print_numbers(&self, numbers: impl IntoIterator<Item = usize>, verb: &str) {
        for number in numbers {
            self.print_setting(&format!("${number} is {verb}{}", self.pictures[number - 1].path.display()));
        }
    }

    fn draw_again(&mut self, count: usize) -> Result<()> {
        let last = self.last.clone().ok_or_else(|| Error::usage("there is no prompt yet").hint("type a prompt"))?;
        self.draw(last, count)
    }

    /// Generates `count` images of a prompt, with this seed and the following ones.
    fn draw(&mut self, prompt: Prompt, count: usize) -> Result<()> {
        let images = prompt.images.iter().map(|number| self.picture(*number).map(|picture| picture.path.clone()));
        let images = images.collect::<Result<Vec<_>>>()?;
        let changes = !images.is_empty();
        let [width, height] = match prompt.size {
            Some(size) => size.map(Some),
            None => [self.recipe.width, self.recipe.height],
        };
        let recipe = Recipe {
            prompt: prompt.text.clone(),
            width,
            height,
            seed: self.seed.unwrap_or_else(|| Seed::Random.value()),
            inputs: images,
            mask: self.mask.clone().filter(|_| changes),
            strength: self.strength.filter(|_| changes),
            ..self.recipe.clone()
        };
        let Expanded { recipe, count, words } = self.args.draw.recipe.expand.expand(recipe, count)?;
        let (first, drawn_words) = (recipe.clone(), words.clone());
        let wanted = Wanted {
            model: self.args.draw.model(None)?,
            count,
            source: None::<Source>,
            prompt_place: "the prompt",
            seed_is_random: self.seed.is_none(),
            reads_stdin: false,
            default_name: String::new(),
            recipe,
            words,
        };
        let output = OutputArgs::new_file(self.new_file());
        let done = self.studio.draw(wanted, &output);
        if done.is_err() {
            // Clears the progress bar: the next line is printed in its place.
            self.studio.break_off();
        }
        self.last = Some(prompt);
        let files = self.studio.written().to_vec();
        self.sets += usize::from(!files.is_empty());
        for (image, path) in files.iter().enumerate() {
            let words = drawn_words.get(image);
            let seed = words.map_or(first.seed + image as u64, |words| words.seed);
            let prompt = words.map_or(&first.prompt, |words| &words.prompt).clone();
            let drawn = Drawn { seed, set: self.sets, stamp: stamp(path) };
            self.pictures.push(Picture { path: path.clone(), prompt, drawn: Some(drawn) });
        }
        files.iter().try_for_each(|path| self.print_path(path))?;
        self.print_numbers(self.pictures.len() - files.len() + 1..=self.pictures.len(), "");
        done.map(drop)
    }

    /// Returns a name template for the next file, with an unused number.
    fn new_file(&self) -> PathBuf {
        let folder = self.args.output.clone().unwrap_or_default();
        let here = if folder.as_os_str().is_empty() { Path::new(".") } else { &folder };
        let names: Vec<String> = fs::read_dir(here)
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|e| e.file_name().into_string().ok())
            .collect();
        let is_free = |number: &usize| !names.iter().any(|name| name.starts_with(&format!("chat-{number:03}")));
        let number = (self.pictures.len() + 1..).find(is_free).unwrap_or_default();
        folder.join(format!("chat-{number:03}-{{prompt:32}}.png"))
    }

    /// Prints the path of an image, which is the result.
    fn print_path(&self, path: &Path) -> Result<()> {
        // With `--json`, the image's object contains the path.
        if self.args.draw.console.json {
            return Ok(());
        }
        print(path.as_os_str().as_encoded_bytes())
    }

    fn picture(&self, number: usize) -> Result<&Picture> {
        number.checked_sub(1).and_then(|place| self.pictures.get(place)).ok_or_else(|| {
            let what = match self.pictures.len() {
                0 => "there is no image yet".to_string(),
                count => format!("there is no image ${number}: the last is ${count}"),
            };
            Error::usage(what).hint("`!list` lists the images")
        })
    }

    fn last_or(&self, number: Option<usize>) -> Result<&Picture> {
        self.picture(number.unwrap_or(self.pictures.len()))
    }

    fn show(&self, number: Option<usize>) -> Result<()> {
        let picture = self.last_or(number)?;
        if io::stdout().is_terminal() {
            return terminal(ProtocolChoice::Auto)?.show(&input::read(&picture.path)?);
        }
        self.print_path(&picture.path)
    }

    fn list(&self) {
        for (place, Picture { path, prompt, drawn }) in self.pictures.iter().enumerate() {
            let seed = drawn.as_ref().map_or("loaded".to_string(), |drawn| format!("seed {}", drawn.seed));
            say(&flux::error::shown(&format!("${}  {}  {seed}  {prompt}", place + 1, path.display())));
        }
    }

    fn save(&self, file: &Path, number: Option<usize>) -> Result<()> {
        let picture = self.last_or(number)?;
        if ImageFormat::from_path(file)? != ImageFormat::from_path(&picture.path)? {
            return Err(Error::usage("a copy must have the format of the image")
                .at_path(file)
                .hint("end the name with .png"));
        }
        let cannot = |e: io::Error| match e.kind() {
            // A symbolic link counts as an existing file, even if it is broken.
            io::ErrorKind::AlreadyExists => {
                Error::usage("the file already exists").at_path(file).hint("name another file")
            }
            _ => Error::new(format!("cannot write the copy: {e}")).at_path(file),
        };
        let bytes = fs::read(&picture.path)
            .map_err(|e| Error::new(format!("cannot read the image: {e}")).at_path(&picture.path))?;
        atomic::write_new(file, &bytes).map_err(cannot)
    }

    fn load(&mut self, file: &Path) -> Result<()> {
        input::read(file)?;
        self.pictures.push(Picture { path: file.to_path_buf(), prompt: String::new(), drawn: None });
        say(&format!("${} is {}", self.pictures.len(), flux::error::shown(&file.display().to_string())));
        Ok(())
    }

    /// Keeps one of the pictures generated last, and removes the rest of the set.
    fn keep(&mut self, number: usize) -> Result<()> {
        self.picture(number)?;
        let of_set = |picture: &Picture| picture.drawn.as_ref().filter(|drawn| drawn.set == self.sets).map(|d| d.seed);
        let set: Vec<usize> = (1..).zip(&self.pictures).filter_map(|(n, p)| of_set(p).map(|_| n)).collect();
        let Some(seed) = of_set(&self.pictures[number - 1]) else {
            let error = Error::usage(format!("${number} is not one of the images that were generated last"));
            return Err(match (set.first(), set.last()) {
                (Some(first), Some(last)) if first < last => error.hint(format!("these are ${first} to ${last}")),
                (Some(only), _) => error.hint(format!("that is only ${only}")),
                _ => error,
            });
        };
        let before: Vec<_> = self.pictures.iter().map(|picture| picture.path.clone()).collect();
        // In reverse order, so that each removed picture leaves the list even if a later removal fails.
        for other in set.into_iter().rev().filter(|other| *other != number) {
            self.remove(&self.pictures[other - 1])?;
            self.pictures.remove(other - 1);
        }
        let is_renumbered = |at: &usize| before.get(at - 1) != Some(&self.pictures[at - 1].path);
        self.print_numbers((1..=self.pictures.len()).filter(is_renumbered), "now ");
        self.seed = Some(seed);
        self.print_setting(&format!("seed {seed} for the next images, until `!seed`"));
        Ok(())
    }

    fn undo(&mut self) -> Result<()> {
        let picture = self.pictures.last().ok_or_else(|| Error::usage("there is no image to forget"))?;
        self.remove(picture)?;
        self.pictures.pop();
        Ok(())
    }

    /// Removes the file of a picture and reports it, if the picture was generated here and its file is unchanged.
    ///
    /// Errors when the file cannot be removed.
    fn remove(&self, picture: &Picture) -> Result<()> {
        let path = picture.path.display();
        let Some(drawn) = &picture.drawn else {
            self.print_setting(&format!("removed {path} from the list; its file is kept"));
            return Ok(());
        };
        match stamp(&picture.path) {
            None => self.print_setting(&format!("removed {path} from the list; its file no longer exists")),
            Some(found) if Some(found) != drawn.stamp => {
                say(&flux::error::shown(&format!("{path} was changed in the meantime, and is kept")));
            }
            Some(_) => match fs::remove_file(&picture.path) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => {
                    return Err(Error::new(format!("cannot remove the image: {e}")).at_path(&picture.path));
                }
                _ => self.print_setting(&format!("removed {path}")),
            },
        }
        Ok(())
    }
}

fn help() {
    for (name, arguments, does) in COMMANDS {
        let command = format!("!{name} {arguments}");
        say(&format!("  {command:22} {does}"));
    }
    say("  a prompt can name images, as in `make $1 blue`, and a size, as in `a cat 512x768`; $$1 is the text $1");
}
