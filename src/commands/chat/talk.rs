//! A conversation: what is set, the images so far, and what each line does to them.

use std::fs;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime};

use flux::engine::Recipe;
use flux::engine::choice::DeviceChoice;
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
use crate::progress::say;

/// An image of the conversation.
struct Picture {
    path: PathBuf,
    prompt: String,
    /// None of one that was loaded.
    drawn: Option<Drawn>,
}

/// What only an image has that was drawn here. Its file alone may be removed.
struct Drawn {
    seed: u64,
    /// The number of the line that it was drawn for, with others.
    set: usize,
    /// Its file as it was written.
    stamp: Option<Stamp>,
}

/// By which a file is known to be as it was: its size, and when it was written.
type Stamp = (u64, SystemTime);

fn stamp(path: &Path) -> Option<Stamp> {
    let metadata = fs::symlink_metadata(path).ok()?;
    Some((metadata.len(), metadata.modified().ok()?))
}

/// Whether the conversation goes on.
#[derive(Debug, PartialEq, Eq)]
pub enum Next {
    GoOn,
    Quit,
}

/// A conversation.
pub struct Talk<'a> {
    args: &'a Chat,
    signals: &'a Signals,
    studio: Studio<'a>,
    /// What the next images have in common, without a prompt and images.
    recipe: Recipe,
    /// None where each image has a random one.
    seed: Option<u64>,
    /// An image to change needs one of these.
    mask: Option<PathBuf>,
    strength: Option<f64>,
    pictures: Vec<Picture>,
    last: Option<Prompt>,
    /// How many lines led to images so far: the number of the last set of pictures.
    sets: usize,
    failed: usize,
}

impl<'a> Talk<'a> {
    /// Errors when the strength of an adapter is no number.
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
        Ok(talk)
    }

    /// What stands in front of a line.
    pub fn prompt(&self) -> String {
        format!("{}> ", self.pictures.len() + 1)
    }

    /// Encodes the prompts that are typed, with what is set now.
    pub fn ahead(&self) -> Option<Ahead> {
        self.studio.ahead(&self.recipe)
    }

    /// Lines that failed.
    pub fn failed(&self) -> usize {
        self.failed
    }

    /// Gives back the memory of the model at once.
    pub fn end(self) {
        self.studio.end();
    }

    /// Does what a line asks for, and tells what is wrong with it.
    ///
    /// Errors when a signal ends the program.
    pub fn hear(&mut self, line: &str) -> Result<Next> {
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
                self.tell_failed(&error);
                Ok(Next::GoOn)
            }
            done => done,
        }
    }

    /// Tells why a line failed.
    pub fn tell_failed(&mut self, error: &Error) {
        self.failed += 1;
        say(&format!("error: {}", error.shown_with(flag)));
    }

    fn obey(&mut self, command: Command) -> Result<Next> {
        match command {
            Command::Help => help(),
            Command::Quit => return Ok(Next::Quit),
            Command::Seed(seed) => self.seed = seed,
            Command::Size(size) => {
                (self.recipe.width, self.recipe.height) = (size.map(|size| size[0]), size.map(|size| size[1]));
            }
            Command::Steps(steps) => self.recipe.steps = steps,
            Command::Guidance(guidance) => self.recipe.guidance = guidance,
            Command::Schedule(schedule) => self.recipe.schedule = schedule,
            Command::Negative(negative) => self.recipe.negative = negative,
            Command::Lora(Some(used)) => {
                if !names::adapter(&used.file)?.exists() {
                    return Err(Error::usage("there is no such adapter").at_path(&used.file));
                }
                self.recipe.adapters.push(used);
            }
            Command::Lora(None) => self.recipe.adapters.clear(),
            Command::Mask(mask) => self.mask = mask.map(PathBuf::from),
            Command::Strength(strength) => self.strength = strength,
            Command::Device(device) => {
                let device: DeviceChoice = device.parse().map_err(|e: String| Error::usage(e).at("!device"))?;
                self.studio.use_device(device);
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

    fn draw_again(&mut self, count: usize) -> Result<()> {
        let last = self.last.clone().ok_or_else(|| Error::usage("there is no prompt yet").hint("type one"))?;
        self.draw(last, count)
    }

    /// Draws a prompt with this seed, and those that follow it.
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
        let wanted = Wanted {
            model: self.args.draw.model(None)?,
            count,
            source: None::<Source>,
            prompt_place: "the prompt",
            seed_is_random: self.seed.is_none(),
            reads_stdin: false,
            default_name: String::new(),
            recipe: recipe.clone(),
        };
        let output = OutputArgs::new_file(self.new_file());
        let done = self.studio.draw(wanted, &output);
        if done.is_err() {
            // The line that follows stands where its bar was.
            self.studio.break_off();
        }
        self.last = Some(prompt);
        let files = self.studio.written().to_vec();
        self.sets += usize::from(!files.is_empty());
        for (path, seed) in files.iter().zip(recipe.seed..) {
            let drawn = Drawn { seed, set: self.sets, stamp: stamp(path) };
            self.pictures.push(Picture { path: path.clone(), prompt: recipe.prompt.clone(), drawn: Some(drawn) });
        }
        files.iter().try_for_each(|path| self.tell(path))?;
        done.map(drop)
    }

    /// A template for the next file: with a number that no file has.
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

    /// Prints the file of an image: it is the result.
    fn tell(&self, path: &Path) -> Result<()> {
        // With --json the object of the image names it.
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
            Error::usage(what).hint("`!list` lists them")
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
        self.tell(&picture.path)
    }

    fn list(&self) {
        for (place, Picture { path, prompt, drawn }) in self.pictures.iter().enumerate() {
            let seed = drawn.as_ref().map_or("loaded".to_string(), |drawn| format!("seed {}", drawn.seed));
            say(&flux::error::shown(&format!("${}  {}  {seed}  {prompt}", place + 1, path.display())));
        }
    }

    fn save(&self, file: &Path, number: Option<usize>) -> Result<()> {
        let picture = self.last_or(number)?;
        if ImageFormat::of(file)? != ImageFormat::of(&picture.path)? {
            return Err(Error::usage("a copy has the format of the image")
                .at_path(file)
                .hint("end the name with .png"));
        }
        let cannot = |e: io::Error| match e.kind() {
            // A link counts, too, wherever it leads.
            io::ErrorKind::AlreadyExists => {
                Error::usage("a file is there already").at_path(file).hint("name another one")
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

    /// Of the pictures that were drawn together last, keeps one.
    fn keep(&mut self, number: usize) -> Result<()> {
        self.picture(number)?;
        let of_set = |picture: &Picture| picture.drawn.as_ref().filter(|drawn| drawn.set == self.sets).map(|d| d.seed);
        let set: Vec<usize> = (1..).zip(&self.pictures).filter_map(|(n, p)| of_set(p).map(|_| n)).collect();
        let Some(seed) = of_set(&self.pictures[number - 1]) else {
            let error = Error::usage(format!("${number} is none of the images that were drawn last"));
            return Err(match (set.first(), set.last()) {
                (Some(first), Some(last)) if first < last => error.hint(format!("these are ${first} to ${last}")),
                (Some(only), _) => error.hint(format!("that is ${only} alone")),
                _ => error,
            });
        };
        // From the last on: each that is gone leaves the list, also where the next one stays.
        for other in set.into_iter().rev().filter(|other| *other != number) {
            remove(&self.pictures[other - 1])?;
            self.pictures.remove(other - 1);
        }
        self.seed = Some(seed);
        Ok(())
    }

    fn undo(&mut self) -> Result<()> {
        let picture = self.pictures.last().ok_or_else(|| Error::usage("there is no image to forget"))?;
        remove(picture)?;
        self.pictures.pop();
        Ok(())
    }
}

/// Removes the file of a picture, if it was drawn here and is still there.
///
/// Errors when it cannot be removed.
fn remove(picture: &Picture) -> Result<()> {
    let Some(drawn) = &picture.drawn else { return Ok(()) };
    if stamp(&picture.path).is_some_and(|found| Some(found) != drawn.stamp) {
        say(&flux::error::shown(&format!("{} was changed meanwhile, and stays", picture.path.display())));
        return Ok(());
    }
    match fs::remove_file(&picture.path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => {
            Err(Error::new(format!("cannot remove the image: {e}")).at_path(&picture.path))
        }
        _ => Ok(()),
    }
}

fn help() {
    for (name, arguments, does) in COMMANDS {
        let command = format!("!{name} {arguments}");
        say(&format!("  {command:22} {does}"));
    }
    say("  a prompt may name images, as in `make $1 blue`, and a size, as in `a cat 512x768`; $$ is a dollar");
}
