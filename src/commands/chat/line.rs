//! What a line asks for: a prompt, with sizes and earlier images in it, or a command that begins with `!`.

use flux::engine::AdapterFile;
use flux::sampler::ScheduleKind;

/// A line.
#[derive(Debug, Clone, PartialEq)]
pub enum Line {
    Nothing,
    Prompt(Prompt),
    Command(Command),
}

/// A prompt.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Prompt {
    pub text: String,
    /// Earlier images that it is drawn from, as `$1` names them.
    pub images: Vec<usize>,
    /// Width and height, where the line has them.
    pub size: Option<[usize; 2]>,
}

/// A command, with its argument.
#[derive(Debug, Clone, PartialEq)]
pub enum Command {
    Help,
    Seed(Option<u64>),
    Size(Option<[usize; 2]>),
    Steps(Option<usize>),
    Guidance(Option<f32>),
    Schedule(ScheduleKind),
    Negative(Option<String>),
    Lora(Option<AdapterFile>),
    Mask(Option<String>),
    Strength(Option<f64>),
    Device(String),
    Show(Option<usize>),
    List,
    Save(String, Option<usize>),
    Load(String),
    Explore(usize),
    Keep(usize),
    Again,
    Undo,
    Quit,
}

/// A command's name, what stands behind it, and what it does.
pub const COMMANDS: [(&str, &str, &str); 20] = [
    ("help", "", "print this list"),
    ("seed", "[N]", "the seed of the next images; without one each has a random one"),
    ("size", "[WxH]", "their size; without one the model's"),
    ("steps", "[N]", "denoising steps"),
    ("guidance", "[X]", "how strongly to follow the prompt"),
    ("schedule", "KIND", "how the noise levels fall"),
    ("negative", "[TEXT]", "what to lean away from"),
    ("lora", "[FILE[:X]]", "add an adapter; without one there is none any more"),
    ("mask", "[FILE]", "draw anew where this image is white, in the first image of a prompt"),
    ("strength", "[X]", "how far to go from the first image of a prompt, from 0 to 1"),
    ("device", "DEVICE", "compute elsewhere"),
    ("show", "[N]", "show an image in the terminal, the last one if none is named"),
    ("list", "", "list the images"),
    ("save", "FILE [N]", "copy an image, the last one if none is named"),
    ("load", "FILE", "add an image, as $N"),
    ("explore", "K", "draw the last prompt with K seeds"),
    ("keep", "N", "of the images that were drawn last, keep this one alone, and its seed"),
    ("again", "", "draw the last prompt once more, with what is set now"),
    ("undo", "", "forget the last image; its file goes"),
    ("quit", "", "end, as Ctrl-D does"),
];

/// Reads a line.
///
/// Errors with what is wrong with it, and what is expected.
pub fn read(line: &str) -> Result<Line, String> {
    let line = line.trim();
    if line.is_empty() {
        return Ok(Line::Nothing);
    }
    match line.strip_prefix('!') {
        Some(command) => self::command(command).map(Line::Command),
        None => prompt(line).map(Line::Prompt),
    }
}

/// The text of the prompt that a line is, if it is one.
pub fn prompt_of(line: &str) -> Option<String> {
    match read(line) {
        Ok(Line::Prompt(prompt)) => Some(prompt.text),
        _ => None,
    }
}

fn prompt(line: &str) -> Result<Prompt, String> {
    let mut prompt = Prompt::default();
    let mut words: Vec<String> = Vec::new();
    for word in line.split_whitespace() {
        let ends = word.trim_end_matches([',', '.', ':', ';']);
        let digits = |text: &&str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        if let Some(number) = ends.strip_prefix('$').filter(digits) {
            let number = number.parse().map_err(|_| format!("`{word}` names no image: `$1` is the first"))?;
            prompt.images.push(number);
        } else if let Some(size) = size(word) {
            prompt.size = Some(size);
        } else {
            words.push(word.replace("$$", "$"));
        }
    }
    prompt.text = words.join(" ");
    Ok(prompt)
}

/// `768x512`, of sides that an image may have.
fn size(word: &str) -> Option<[usize; 2]> {
    let (width, height) = word.split_once(['x', 'X'])?;
    let side = |text: &str| text.parse().ok().filter(|side| (16..=8192).contains(side));
    Some([side(width)?, side(height)?])
}

fn command(line: &str) -> Result<Command, String> {
    let (name, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    let rest = rest.trim();
    let Some((_, arguments, _)) = COMMANDS.iter().find(|(known, ..)| *known == name) else {
        return Err(unknown(name));
    };
    let usage = || format!("expected `!{name} {arguments}`").trim_end().to_string();
    let needed = || if rest.is_empty() { Err(usage()) } else { Ok(rest.to_string()) };
    match name {
        "help" => Ok(Command::Help),
        "seed" if rest == "random" => Ok(Command::Seed(None)),
        "seed" => optional(rest, &usage).map(Command::Seed),
        "size" if rest.is_empty() => Ok(Command::Size(None)),
        "size" => {
            let square = rest.parse().ok().map(|side: usize| [side, side]);
            size(rest).or(square).map(|size| Command::Size(Some(size))).ok_or_else(usage)
        }
        "steps" => optional(rest, &usage).map(Command::Steps),
        "guidance" => optional(rest, &usage).map(Command::Guidance),
        "schedule" => {
            let kind = needed()?.parse::<ScheduleKind>();
            kind.map(Command::Schedule).map_err(|e| e.what().to_string())
        }
        "negative" => Ok(Command::Negative((!rest.is_empty()).then(|| rest.to_string()))),
        "lora" => Ok(Command::Lora((!rest.is_empty()).then(|| adapter(rest)))),
        "mask" => Ok(Command::Mask((!rest.is_empty()).then(|| rest.to_string()))),
        "strength" => optional(rest, &usage).map(Command::Strength),
        "device" => needed().map(Command::Device),
        "show" => optional(rest.trim_start_matches('$'), &usage).map(Command::Show),
        "list" => Ok(Command::List),
        "save" => {
            let words = shlex::split(rest).ok_or_else(usage)?;
            match words.as_slice() {
                [file] => Ok(Command::Save(file.clone(), None)),
                [file, number] => {
                    let number = number.trim_start_matches('$').parse().map_err(|_| usage())?;
                    Ok(Command::Save(file.clone(), Some(number)))
                }
                _ => Err(usage()),
            }
        }
        "load" => needed().map(Command::Load),
        "explore" => match needed()?.parse() {
            Ok(count @ 1..=64) => Ok(Command::Explore(count)),
            _ => Err("expected a number of images from 1 to 64".to_string()),
        },
        "keep" => needed()?.trim_start_matches('$').parse().map(Command::Keep).map_err(|_| usage()),
        "again" => Ok(Command::Again),
        "undo" => Ok(Command::Undo),
        _ => Ok(Command::Quit),
    }
}

fn optional<T: std::str::FromStr>(text: &str, usage: &dyn Fn() -> String) -> Result<Option<T>, String> {
    if text.is_empty() { Ok(None) } else { text.parse().map(Some).map_err(|_| usage()) }
}

/// `FILE` or `FILE:STRENGTH`
fn adapter(text: &str) -> AdapterFile {
    let split = text.rsplit_once(':').and_then(|(file, strength)| Some((file, strength.parse().ok()?)));
    let (file, strength) = split.unwrap_or((text, 1.0));
    AdapterFile { file: file.into(), strength }
}

fn unknown(name: &str) -> String {
    let near = COMMANDS.iter().map(|(known, ..)| (strsim::damerau_levenshtein(known, name), known)).min();
    match near {
        Some((0..=2, near)) => format!("there is no command `!{name}`; `!{near}` is one"),
        _ => format!("there is no command `!{name}`; `!help` lists them"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prompt(line: &str) -> Prompt {
        match read(line) {
            Ok(Line::Prompt(prompt)) => prompt,
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn a_prompt_names_images_and_a_size() {
        let with = prompt("make $1 look like $12, 512x768");
        assert_eq!((with.text.as_str(), with.images, with.size), ("make look like", vec![1, 12], Some([512, 768])));
        let plain = prompt("  a $5x shirt for $$3, 4x4 and x  ");
        assert_eq!(plain.text, "a $5x shirt for $3, 4x4 and x");
        assert_eq!((plain.images.as_slice(), plain.size), (&[][..], None), "4 pixels are no side");
        assert!(read("make $99999999999999999999 blue").is_err());
        assert_eq!(read("   "), Ok(Line::Nothing));
    }

    #[test]
    fn every_command_is_read_and_has_its_arguments() {
        for (line, command) in [
            ("!help", Command::Help),
            ("!seed 7", Command::Seed(Some(7))),
            ("!seed", Command::Seed(None)),
            ("!seed random", Command::Seed(None)),
            ("!size 64x32", Command::Size(Some([64, 32]))),
            ("!size 128", Command::Size(Some([128, 128]))),
            ("!steps 4", Command::Steps(Some(4))),
            ("!guidance 2.5", Command::Guidance(Some(2.5))),
            ("!schedule linear", Command::Schedule("linear".parse().unwrap())),
            ("!negative a dog, fog", Command::Negative(Some("a dog, fog".to_string()))),
            (
                "!lora a b.safetensors:0.5",
                Command::Lora(Some(AdapterFile { file: "a b.safetensors".into(), strength: 0.5 })),
            ),
            ("!lora", Command::Lora(None)),
            ("!mask m.png", Command::Mask(Some("m.png".to_string()))),
            ("!strength 0.5", Command::Strength(Some(0.5))),
            ("!device cpu", Command::Device("cpu".to_string())),
            ("!show $2", Command::Show(Some(2))),
            ("!list", Command::List),
            ("!save 'my cat.png' 3", Command::Save("my cat.png".to_string(), Some(3))),
            ("!load a.png", Command::Load("a.png".to_string())),
            ("!explore 4", Command::Explore(4)),
            ("!keep $2", Command::Keep(2)),
            ("!again", Command::Again),
            ("!undo", Command::Undo),
            ("!quit", Command::Quit),
        ] {
            assert_eq!(read(line), Ok(Line::Command(command)), "{line}");
        }
        for (name, ..) in COMMANDS {
            let known = |line: String| !read(&line).is_err_and(|why| why.contains("no command"));
            assert!(known(format!("!{name}")), "{name}");
        }
        for (bad, words) in [
            ("!sead 3", "`!seed` is one"),
            ("!xyzzy", "`!help` lists them"),
            ("!steps four", "expected `!steps [N]`"),
            ("!explore 0", "from 1 to 64"),
            ("!save", "expected `!save FILE [N]`"),
            ("!schedule x", "not a schedule"),
        ] {
            assert!(read(bad).is_err_and(|why| why.contains(words)), "{bad}: {:?}", read(bad));
        }
    }
}
