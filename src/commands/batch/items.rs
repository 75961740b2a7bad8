//! The images of the lines: each with its file, and what is to be done for it.

use std::collections::{HashMap, HashSet};
use std::path::{self, Component, Path, PathBuf};
use std::time::SystemTime;

use flux::engine::Recipe;
use flux::files::digest::sha256;
use flux::output::{ImageFormat, NameFields, NameTemplate, Target};
use flux::{Error, Result};

use super::lines::{Asked, Images, Line};
use super::manifest::{Entry, Found, Manifest};
use crate::cli::{Batch, ModelChoice};

/// An image of a line.
#[derive(Debug, Clone)]
pub struct Item {
    pub line: usize,
    pub index: usize,
    /// Which of the images of the line it is, from 1.
    pub n: usize,
    /// Its seed is that of the image.
    pub recipe: Recipe,
    /// The name in the folder.
    pub file: String,
    /// A hash of what is asked for.
    pub key: String,
    /// Whether a file that is there is written over.
    pub replaces: bool,
}

/// A line that asks for nothing that can be made.
#[derive(Debug)]
pub struct Wrong {
    pub line: usize,
    pub index: usize,
    pub error: Error,
}

/// The images of all lines, in their order.
#[derive(Debug, Default)]
pub struct Items {
    pub items: Vec<Item>,
    pub wrong: Vec<Wrong>,
}

/// What is to be done.
#[derive(Debug, Default)]
pub struct Todo {
    /// Images to make.
    pub items: Vec<Item>,
    pub wrong: Vec<Wrong>,
    /// Images that are there.
    pub existing: usize,
}

impl Items {
    /// The images of the lines of one part of them. A name that two images have is wrong in the second, and so is a
    /// line that reads what another makes. Seeds that are drawn at random are those of images that are there, which the
    /// `manifest` tells.
    ///
    /// Errors when the template of names is wrong.
    pub fn new(
        lines: Vec<Line>,
        args: &Batch,
        model: &ModelChoice,
        model_name: &str,
        manifest: Option<&Manifest>,
    ) -> Result<Self> {
        let mut names = Names {
            default: template(&args.name).map_err(|e| e.at("--name"))?,
            model: model_name,
            time: SystemTime::now(),
            seeds: manifest.map(Manifest::seeds).unwrap_or_default(),
        };
        let salt = salt(args, model)?;
        let (mut all, mut taken) = (Self::default(), HashMap::new());
        for Line { line, index, asked } in lines {
            let items = match asked {
                Asked::Images(images) => names.items(*images, [line, index], &salt),
                Asked::Wrong(error) => Err(error),
            };
            // Names are told apart among all lines, whichever part makes them.
            match items.and_then(|items| told_apart(items, &taken)) {
                Ok(items) => {
                    taken.extend(items.iter().map(|item| (item.file.clone(), line)));
                    all.items.extend(items);
                }
                Err(error) if args.shard.has(index) => all.wrong.push(Wrong { line, index, error }),
                Err(_) => {}
            }
        }
        all.refuse_made_inputs(&args.folder, &taken);
        all.items.retain(|item| args.shard.has(item.index));
        all.wrong.sort_by_key(|wrong| wrong.line);
        Ok(all)
    }

    /// An input that a line makes may not be there yet, or become another one.
    fn refuse_made_inputs(&mut self, folder: &Path, taken: &HashMap<String, usize>) {
        let made: HashMap<PathBuf, usize> =
            taken.iter().map(|(file, line)| (absolute(&folder.join(file)), *line)).collect();
        let mut wrong = Vec::new();
        self.items.retain(|item| {
            let found = item.recipe.files().find_map(|(field, file)| Some((field, file, made.get(&absolute(file))?)));
            let Some((field, file, line)) = found else { return true };
            let error = Error::usage(format!("`{}` is an image that line {line} makes", file.display()))
                .of(field)
                .hint("make two lists of them, one after the other");
            wrong.push(Wrong { line: item.line, index: item.index, error });
            false
        });
        wrong.dedup_by_key(|wrong| wrong.line);
        self.wrong.extend(wrong);
    }
}

/// The items of a line, unless one has the name of another or of one that is `taken`.
fn told_apart(items: Vec<Item>, taken: &HashMap<String, usize>) -> Result<Vec<Item>> {
    let mut own = HashSet::new();
    for Item { file, line, .. } in &items {
        if let Some(other) = taken.get(file).or((!own.insert(file)).then_some(line)) {
            return Err(Error::usage(format!("`{file}` is the name of another image, of line {other}"))
                .hint("give each its own, as with `--name {index:04}-{n}.png`"));
        }
    }
    Ok(items)
}

/// A path from the root, without what does not change where it leads.
fn absolute(path: &Path) -> PathBuf {
    path::absolute(path).unwrap_or_else(|_| path.to_path_buf()).components().collect()
}

impl Todo {
    /// What is left to do in a folder with this manifest.
    pub fn of(items: Items, manifest: Option<&Manifest>, args: &Batch) -> Self {
        let mut todo = Self { wrong: items.wrong, ..Self::default() };
        for item in items.items {
            let found = manifest.map_or(Found::Nothing, |manifest| manifest.find(&item.file, &item.key));
            let wrong = |error| Wrong { line: item.line, index: item.index, error };
            match found {
                Found::Nothing => todo.items.push(item),
                Found::Older => todo.items.push(Item { replaces: true, ..item }),
                _ if args.force => todo.items.push(Item { replaces: true, ..item }),
                Found::Same => {
                    let adopting = manifest.filter(|_| !args.dry_run);
                    match adopting.map_or(Ok(()), |manifest| manifest.adopt(item.entry(), &item.file)) {
                        Ok(()) => todo.existing += 1,
                        Err(error) => todo.wrong.push(wrong(error)),
                    }
                }
                Found::Foreign => {
                    let error = Error::new(format!("`{}` is there, and is not what this list made", item.file))
                        .hint("move it, name another folder, or write over it with `--force`");
                    todo.wrong.push(wrong(error));
                }
            }
        }
        todo
    }
}

impl Item {
    /// Where it is written.
    ///
    /// Errors when that cannot be, or when something is there that was not when the list was read.
    pub fn target(&self, folder: &Path) -> Result<Target> {
        let target = Target::new(&folder.join(&self.file))?;
        if self.replaces {
            return Ok(target);
        }
        target.without_overwriting().map_err(|_| {
            Error::new(format!("`{}` is there now, and was not when the list was read", self.file))
                .hint("does another list write into the same folder?")
        })
    }

    /// What the manifest says of it before it is made.
    pub fn entry(&self) -> Entry {
        Entry {
            file: Some(self.file.clone()),
            seed: Some(self.recipe.seed),
            recipe: Some(self.recipe.clone()),
            ..Entry::new([self.line, self.index, self.n], self.key.clone())
        }
    }
}

/// How images are called.
struct Names<'a> {
    default: NameTemplate,
    model: &'a str,
    time: SystemTime,
    /// Seeds of images that are there, and their files, by keys.
    seeds: HashMap<String, Vec<(u64, String)>>,
}

impl Names<'_> {
    /// The images of a line.
    fn items(&mut self, images: Images, [line, index]: [usize; 2], salt: &str) -> Result<Vec<Item>> {
        let Images { recipe, seed_is_random, count, output } = images;
        let own = output.as_deref().map(template).transpose()?;
        let (mut items, mut drawn) = (Vec::with_capacity(count), HashSet::new());
        for image in 0..count {
            let asked = Recipe { seed: if seed_is_random { 0 } else { recipe.seed + image as u64 }, ..recipe.clone() };
            let json = serde_json::to_string(&asked).map_err(|e| Error::new(format!("cannot hash the recipe: {e}")))?;
            let random = if seed_is_random { format!(" random {}", image + 1) } else { String::new() };
            let key = sha256(format!("{json}{random}{salt}").as_bytes())[..32].to_string();
            let template = own.as_ref().unwrap_or(&self.default);
            let name = |seed: u64| {
                let Self { model, time, .. } = *self;
                let fields = NameFields { seed, number: image + 1, index, prompt: &recipe.prompt, model, time };
                let file = template.fill(&fields);
                if count > 1 && !template.tells_apart() { with_number(&file, image + 1) } else { file }
            };
            let seed = if seed_is_random {
                // That of an image that is there is not drawn anew: its name may have it.
                let known = self.seeds.get(&key).into_iter().flatten();
                let known = known.enumerate().find(|(_, (seed, file))| plain(&name(*seed)).as_deref() == Some(file));
                let known = known.map(|(at, (seed, _))| (at, *seed));
                if let Some((at, _)) = known {
                    self.seeds.entry(key.clone()).or_default().remove(at);
                }
                known.map_or_else(|| random_seed(&mut drawn), |(_, seed)| seed)
            } else {
                asked.seed
            };
            let file = name(seed);
            let file = plain(&file).ok_or_else(|| {
                Error::usage(format!("`{file}` is no name in the folder"))
                    .hint("name a file without `..` and `/` in front")
            })?;
            ImageFormat::of(Path::new(&file))?;
            let recipe = Recipe { seed, ..recipe.clone() };
            items.push(Item { line, index, n: image + 1, recipe, file, key, replaces: false });
        }
        Ok(items)
    }
}

/// One that none of `drawn` is, which it then is, too.
fn random_seed(drawn: &mut HashSet<u64>) -> u64 {
    loop {
        let seed = u64::from(rand::random::<u32>());
        if drawn.insert(seed) {
            return seed;
        }
    }
}

/// What makes another image beside the recipe.
fn salt(args: &Batch, model: &ModelChoice) -> Result<String> {
    let paths = serde_json::to_string(&model.paths).map_err(|e| Error::new(format!("cannot hash the model: {e}")))?;
    let quantise = model.quantise.map(|formats| formats.to_string()).unwrap_or_default();
    let attention = if model.attention.is_auto() { "" } else { model.attention.name() };
    Ok(format!(" {paths} {} {quantise} {}{attention}", model.kv, model.precision.name()).replace('\0', "")
        + if args.draw.no_provenance { " no provenance" } else { "" })
}

fn template(name: &str) -> Result<NameTemplate> {
    NameTemplate::parse(name)
}

/// `a.png` as `a-2.png`
fn with_number(file: &str, number: usize) -> String {
    match file.rsplit_once('.') {
        Some((stem, ending)) if !ending.contains('/') => format!("{stem}-{number}.{ending}"),
        _ => format!("{file}-{number}"),
    }
}

/// A name as one file has it alone, without `.` and doubled `/`; none where it leads out of the folder.
fn plain(file: &str) -> Option<String> {
    if file.contains('\0') {
        return None;
    }
    let parts = Path::new(file).components().filter(|part| *part != Component::CurDir);
    let names = parts.map(|part| match part {
        Component::Normal(name) => name.to_str(),
        _ => None,
    });
    names.collect::<Option<Vec<_>>>().map(|names| names.join("/"))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::super::lines::{self, Defaults};
    use super::*;
    use crate::cli::{BatchFormat, Cli, Command};

    fn args(flags: &str) -> Batch {
        let line = format!("flux batch x.jsonl out {flags}");
        match Cli::try_parse_from(line.split_whitespace()).unwrap_or_else(|e| panic!("{e}")).command {
            Some(Command::Batch(args)) => *args,
            _ => panic!("{line}"),
        }
    }

    fn items(text: &str, flags: &str) -> Items {
        let args = args(flags);
        let defaults = Defaults { recipe: Recipe::default(), seed: Some(5), count: args.count as usize };
        let lines = lines::read(text.as_bytes(), BatchFormat::Jsonl, &defaults).unwrap();
        Items::new(lines, &args, &args.draw.model(None).unwrap(), "m", None).unwrap()
    }

    #[test]
    fn each_image_has_its_own_file() {
        let text = r#"{"prompt": "a Cat"}
{"prompt": "b", "n": 2, "output": "b.webp"}
{"prompt": "c", "output": ".//b-2.webp"}
{"prompt": "d", "output": "../d.png"}
{"prompt": "e", "output": "/e.png"}
{"prompt": "f", "output": "f.gif"}
{"prompt": "g", "output": "./g//{seed}.jpg"}
{"prompt": "h", "inputs": ["./out/g/11.jpg"]}"#;
        let Items { items, wrong } = items(text, "");
        let files: Vec<_> = items.iter().map(|item| item.file.as_str()).collect();
        assert_eq!(files, ["0001-a-cat.png", "b-1.webp", "b-2.webp", "g/11.jpg"]);
        let wrong: Vec<_> = wrong.iter().map(|wrong| (wrong.line, wrong.error.to_string())).collect();
        for ((line, error), (expected, words)) in wrong.iter().zip([
            (3, "of line 2"),
            (4, "no name in the folder"),
            (5, "no name"),
            (6, ".png"),
            (8, "is an image that line 7 makes"),
        ]) {
            assert!(*line == expected && error.contains(words), "{line}: {error}");
        }
        assert_eq!(wrong.len(), 5);
    }

    #[test]
    fn a_key_changes_with_all_that_changes_the_image_and_with_nothing_else() {
        let key = |line: &str, flags: &str| items(line, flags).items[0].key.clone();
        let one = key(r#"{"prompt": "a", "seed": 1}"#, "");
        assert_eq!(key(r#"{"seed": 1, "prompt": "a", "mask": null}"#, "-q --device cpu"), one);
        assert_eq!(key("{\"prompt\": \"z\"}\n", "").len(), 32);
        for (line, flags) in [
            (r#"{"prompt": "b", "seed": 1}"#, ""),
            (r#"{"prompt": "a", "seed": 2}"#, ""),
            (r#"{"prompt": "a", "seed": "random"}"#, ""),
            (r#"{"prompt": "a", "seed": 1, "steps": 3}"#, ""),
            (r#"{"prompt": "a", "seed": 1}"#, "-d other"),
            (r#"{"prompt": "a", "seed": 1}"#, "--quantize fp8"),
            (r#"{"prompt": "a", "seed": 1}"#, "--precision bf16"),
            (r#"{"prompt": "a", "seed": 1}"#, "--attention bf16"),
            (r#"{"prompt": "a", "seed": 1}"#, "--no-provenance"),
        ] {
            assert_ne!(key(line, flags), one, "{line} {flags}");
        }
        // A random seed is another each time, and the image that is there is the one that was asked for.
        let random = r#"{"prompt": "a", "seed": "random"}"#;
        assert_eq!(key(random, ""), key(random, ""));
    }

    #[test]
    fn parts_have_each_image_once() {
        let text = (0..7).map(|line| format!("{{\"prompt\": \"{line}\"}}\n")).collect::<String>();
        let of = |flags: &str| items(&text, flags).items.into_iter().map(|item| item.file).collect::<Vec<_>>();
        let mut parts = [of("--shard 1/3"), of("--shard 2/3"), of("--shard 3/3")].concat();
        parts.sort();
        assert_eq!(parts, of(""));
    }
}
