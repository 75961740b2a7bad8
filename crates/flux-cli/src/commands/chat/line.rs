//! Parser for interactive lines: a prompt with sizes and references to earlier images, or a command that begins with
//! `!`.

use flux::engine::AdapterFile;
use flux::engine::regions::TextRegion;
use flux::sampler::ScheduleKind;

/// A parsed line.
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
    /// Numbers of the input images, as in `$1`.
    pub images: Vec<usize>,
    /// Width and height, if the line has a size.
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
    Region(Option<TextRegion>),
    Strength(Option<f64>),
    Upsample(bool),
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

/// The name, arguments and description of each command.
pub const COMMANDS: [(&str, &str, &str); 22] = [
    ("help", "", "print this list"),
    ("seed", "[N]", "set the seed; without N, each image gets a random seed"),
    ("size", "[WxH]", "set the image size; without one, the model's default is used"),
    ("steps", "[N]", "set the number of denoising steps"),
    ("guidance", "[X]", "set how strongly to follow the prompt"),
    ("schedule", "KIND", "set the noise schedule"),
    ("negative", "[TEXT]", "set the negative prompt"),
    ("lora", "[FILE[:X]]", "add an adapter; without FILE, remove all adapters"),
    ("mask", "[FILE]", "regenerate the white area of this mask in the first image of a prompt"),
    ("region", "[T,L,B,R:TEXT]", "add a text for a part of the image; without one, remove all regions"),
    ("strength", "[X]", "set how much to change the first image of a prompt, from 0 to 1"),
    ("upsample", "on|off", "let a language model write full prompts, or not"),
    ("device", "DEVICE", "use another device"),
    ("show", "[N]", "show an image in the terminal; without N, the last one"),
    ("list", "", "list the images"),
    ("save", "FILE [N]", "copy an image; without N, the last one"),
    ("load", "FILE", "add an image as $N"),
    ("explore", "K", "generate the last prompt with K seeds"),
    ("keep", "N", "keep this image of the last set and its seed; remove the files of the others"),
    ("again", "", "generate the last prompt again with the current settings"),
    ("undo", "", "forget the last image; remove its file unless it was loaded"),
    ("quit", "", "quit, like Ctrl-D"),
];

/// Parses a line.
///
/// Errors with the fault and the expected form.
pub fn read(line: &str) -> Result<Line, String> {
    let line = line.trim();
    if line.is_empty() {
        return Ok(Line::Nothing);
    }
    if let Some(command) = line.strip_prefix('!') {
        return self::command(command).map(Line::Command);
    }
    match bare(line) {
        Some(command) => command.map(Line::Command),
        None => prompt(line).map(Line::Prompt),
    }
}

/// Words that end a session or ask for help in other programs.
const ENDS: [&str; 13] =
    ["exit", "quit", "bye", "goodbye", "logout", "q", ":q", ":q!", ":wq", ":quit", "\\q", "exit()", "quit()"];
const HELPS: [&str; 9] = ["help", "?", "h", ":h", ":help", "-h", "--help", "help()", "\\?"];

/// Returns the command that a line without `!` means, or `None` for a prompt. Words for quitting and for help are
/// obeyed; for other commands an error explains the `!`.
fn bare(line: &str) -> Option<Result<Command, String>> {
    let lower = line.to_lowercase();
    let plain = lower.trim_end_matches(['.', '!', ';']);
    let word = plain.strip_prefix('/').unwrap_or(plain);
    if ENDS.contains(&word) || ENDS.contains(&plain) {
        return Some(Ok(Command::Quit));
    }
    if HELPS.contains(&word) || HELPS.contains(&plain) {
        return Some(Ok(Command::Help));
    }
    let (name, rest) = word.split_once(char::is_whitespace).unwrap_or((word, ""));
    let is_command = COMMANDS.iter().any(|(known, ..)| *known == name);
    let is_value = |word: &str| word.chars().all(|c| c.is_ascii_digit() || matches!(c, '.' | 'x' | '$' | '-'));
    // `a mask` is a prompt, and so may `mask` be. `seed 7` is not.
    let is_meant =
        plain.starts_with('/') || rest.split_whitespace().all(is_value) && command(word).is_ok() && word != "mask";
    (is_command && is_meant)
        .then(|| Err(format!("commands start with `!`: `!{word}`; for a prompt with these words, add another word")))
}

/// Returns the text of the prompt, if the line is one.
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
            let number = number.parse().map_err(|_| format!("`{word}` is not an image: `$1` is the first"))?;
            prompt.images.push(number);
        } else if let Some(size) = size(word) {
            prompt.size = Some(size);
        } else {
            // `$$1` is the text `$1`. Templates have `$$` elsewhere.
            let is_doubled = ends.strip_prefix("$$").is_some_and(|number| digits(&number));
            words.push(word[usize::from(is_doubled)..].to_string());
        }
    }
    prompt.text = words.join(" ");
    if prompt.text.is_empty() {
        return Err("the line has no prompt; `!size WxH` sets the size, and `!show N` shows an image".to_string());
    }
    Ok(prompt)
}

/// Parses `768x512`, with sides between 16 and 8192.
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
        "lora" => (!rest.is_empty()).then(|| AdapterFile::parse(rest)).transpose().map(Command::Lora),
        "mask" => Ok(Command::Mask((!rest.is_empty()).then(|| rest.to_string()))),
        "region" => (!rest.is_empty()).then(|| rest.parse()).transpose().map(Command::Region),
        "strength" => optional(rest, &usage).map(Command::Strength),
        "upsample" => match rest {
            "on" => Ok(Command::Upsample(true)),
            "off" => Ok(Command::Upsample(false)),
            _ => Err(usage()),
        },
        "device" => needed().map(Command::Device),
        "show" => optional(rest.trim_start_matches('$'), &usage).map(Command::Show),
        "help" | "list" | "again" | "undo" | "quit" if !rest.is_empty() => Err(usage()),
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
        "help" => Ok(Command::Help),
        _ => Ok(Command::Quit),
    }
}

fn optional<T: std::str::FromStr>(text: &str, usage: &dyn Fn() -> String) -> Result<Option<T>, String> {
    if text.is_empty() { Ok(None) } else { text.parse().map(Some).map_err(|_| usage()) }
}

fn unknown(name: &str) -> String {
    let near = COMMANDS.iter().map(|(known, ..)| (strsim::damerau_levenshtein(known, name), known)).min();
    match near {
        Some((0..=2, near)) => format!("unknown command `!{name}`; did you mean `!{near}`?"),
        _ => format!("unknown command `!{name}`; `!help` lists the commands"),
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
        assert_eq!(prompt("{2$$ and $$red|blue} heart").text, "{2$$ and $$red|blue} heart");
        assert!(read("make $99999999999999999999 blue").is_err());
        assert_eq!(read("   "), Ok(Line::Nothing));
    }

    #[test]
    fn what_is_no_prompt_is_never_drawn() {
        for line in ["exit", "Quit", "bye!", "goodbye.", ":q", "/exit", "quit()", "\\q", " logout "] {
            assert_eq!(read(line), Ok(Line::Command(Command::Quit)), "{line}");
        }
        for line in ["help", "?", "/help", "--help", "HELP"] {
            assert_eq!(read(line), Ok(Line::Command(Command::Help)), "{line}");
        }
        for line in ["undo", "seed 7", "size 512x512", "/undo", "/seed 7", "keep $3", "again", "steps 4", "list"] {
            assert!(read(line).is_err_and(|why| why.contains("start with `!`")), "{line}: {:?}", read(line));
        }
        for line in ["64x64", "$1", "$1 512x512"] {
            assert!(read(line).is_err_and(|why| why.contains("no prompt")), "{line}");
        }
        for line in
            ["a quiet exit", "show me a cat", "save the whales", "mask", "quit smoking", "help a cat", "size matters"]
        {
            prompt(line);
        }
        assert!(read("!undo 3").is_err() && read("!help me").is_err());
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
            ("!lora a b.safetensors:0.5", Command::Lora(Some(AdapterFile::new("a b.safetensors", 0.5)))),
            ("!lora", Command::Lora(None)),
            ("!mask m.png", Command::Mask(Some("m.png".to_string()))),
            ("!region 0,0,9,9:a cat", Command::Region("0,0,9,9:a cat".parse().ok())),
            ("!region", Command::Region(None)),
            ("!strength 0.5", Command::Strength(Some(0.5))),
            ("!upsample off", Command::Upsample(false)),
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
            let known = |line: String| !read(&line).is_err_and(|why| why.contains("unknown command"));
            assert!(known(format!("!{name}")), "{name}");
        }
        for (bad, words) in [
            ("!sead 3", "`!seed`?"),
            ("!xyzzy", "`!help` lists"),
            ("!steps four", "expected `!steps [N]`"),
            ("!explore 0", "from 1 to 64"),
            ("!save", "expected `!save FILE [N]`"),
            ("!schedule x", "not a schedule"),
        ] {
            assert!(read(bad).is_err_and(|why| why.contains(words)), "{bad}: {:?}", read(bad));
        }
    }
}
