//! Tests of expansion as a whole. `scripts/dump_expansions.py` computes the expected prompts.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use super::*;
use crate::pipeline::MAX_PROMPT_BYTES;
use crate::sampler::RandomStream;

const FOLDER: &str = "tests/expand/wildcards";

fn expander(folder: &Path) -> Expander {
    Expander::new(&Expansion { wildcards: Some(folder.to_path_buf()), ..Expansion::default() })
}

fn prompt(expander: &Expander, template: &str, seed: u64) -> std::result::Result<String, String> {
    expander.image(&Recipe::new(template, seed), 0).map(|recipe| recipe.prompt).map_err(|e| e.to_string())
}

fn expand(template: &str, seed: u64) -> String {
    prompt(&expander(FOLDER.as_ref()), template, seed).unwrap()
}

fn refused(template: &str) -> String {
    prompt(&expander(FOLDER.as_ref()), template, 1).unwrap_err()
}

fn all(template: &str) -> std::result::Result<Vec<String>, String> {
    let expansion = Expansion { wildcards: Some(FOLDER.into()), all: true, ..Expansion::default() };
    let expanded = Expander::new(&expansion).expand(&Recipe::new(template, 7), 1).map_err(|e| e.to_string())?;
    assert!(expanded.words.iter().all(|words| words.seed == 7));
    match expanded.words.is_empty() {
        true => Ok(vec![expanded.recipe.prompt]),
        false => Ok(expanded.words.into_iter().map(|words| words.prompt).collect()),
    }
}

#[test]
fn the_words_of_a_seed_stay_as_they_are() {
    let rows: Vec<(String, u64, String)> =
        serde_json::from_str(include_str!("../../../tests/expand/expected.json")).unwrap();
    assert!(rows.len() >= 40);
    for (template, seed, expected) in rows {
        assert_eq!(expand(&template, seed), expected, "{template}, seed {seed}");
    }
}

#[test]
fn text_that_is_added_changes_nothing_before_it() {
    let template = "{a {b|{c|d}}|__animal__} and {e|f|g}";
    for seed in 0..50 {
        let short = expand(template, seed);
        let long = expand(&format!("{template}, {{h|__animal__}} {{2$$i|j|k}}"), seed);
        assert!(long.starts_with(&format!("{short}, ")), "{short} / {long}");
    }
}

#[test]
fn options_come_as_often_as_their_weights_say() {
    let mut counts = HashMap::<String, usize>::new();
    for seed in 0..2000 {
        *counts.entry(expand("{3::a|b|0::c}{|d}", seed)).or_default() += 1;
    }
    // Four standard deviations of 2000 picks.
    let share = |text: &str| counts.get(text).map_or(0.0, |count| *count as f64 / 2000.0);
    for (text, expected) in [("a", 0.375), ("ad", 0.375), ("b", 0.125), ("bd", 0.125), ("c", 0.0), ("cd", 0.0)] {
        assert!((share(text) - expected).abs() < 0.044, "{text}: {}", share(text));
    }
}

#[test]
fn each_image_has_the_words_of_its_seed() {
    let expander = expander(FOLDER.as_ref());
    let template = "a {red|blue|green} {cat|dog|bird}";
    let recipe = Recipe { steps: Some(2), ..Recipe::new(template, 5) };
    let Expanded { recipe: first, count, words } = expander.expand(&recipe, 20).unwrap();
    assert_eq!((count, words.len(), first.steps), (20, 20, Some(2)));
    for (image, words) in words.iter().enumerate() {
        assert_eq!(words.seed, 5 + image as u64);
        assert_eq!(words.prompt, expand(template, words.seed));
    }
    assert_eq!((&first.prompt, first.template.as_deref()), (&words[0].prompt, Some(template)));
    // The words of a recipe come from its template.
    let again = expander.image(&Recipe { seed: 6, ..first }, 0).unwrap();
    assert_eq!((again.prompt, again.template.as_deref()), (words[1].prompt.clone(), Some(template)));

    let held = Expander::new(&Expansion { seed: Some(9), ..Expansion::default() });
    let held = held.expand(&recipe, 3).unwrap();
    assert!(held.words.iter().all(|words| words.prompt == expand(template, 9)));
    assert_eq!(held.words.iter().map(|words| words.seed).collect::<Vec<_>>(), [5, 6, 7]);

    for plain in ["a cat", r#"[{"id": "cat_1", "bbox": [1,2,3,4]}]"#, r#"{"subject": "a {red|blue} cat"}"#] {
        let expanded = expander.expand(&Recipe::new(plain, 5), 3).unwrap();
        assert_eq!(expanded, Expanded::plain(Recipe::new(plain, 5), 3));
        assert!(!has_choices(plain));
    }
    assert!(has_choices(template) && has_choices("__a__"));
}

#[test]
fn combinations_are_listed_in_order() {
    assert_eq!(all("{a|b} {c|d}").unwrap(), ["a c", "a d", "b c", "b d"]);
    assert_eq!(all("{a|b {c|d}|0::e}").unwrap(), ["a", "b c", "b d"]);
    assert_eq!(all("{2$$a|b|c}").unwrap(), ["a, b", "a, c", "b, c"]);
    assert_eq!(all("{0-2$$+$$a|{b|c}}").unwrap(), ["", "a", "b", "c", "a+b", "a+c"]);
    assert_eq!(all("{1-9$$ $$a|b}").unwrap(), ["a", "b", "a b"]);
    assert_eq!(all("__color__").unwrap(), ["red", "blue", "dark green", "dark grey"]);
    assert_eq!(all("{2$$__color__}").unwrap().len(), 5);
    assert_eq!(all("__animal__").unwrap().len(), 6);
    assert_eq!(all("a cat").unwrap(), ["a cat"]);
    let ten = "{0|1|2|3|4|5|6|7|8|9}";
    assert_eq!(all(&ten.repeat(3)).unwrap().len(), 1000);
    assert!(all(&ten.repeat(4)).unwrap_err().contains("10000, expected at most 1000"));
    assert!(all(&ten.repeat(40)).unwrap_err().contains("too many to count"));
    assert!(all("{3$$a|b}").unwrap_err().contains("3 options"));
    let all = Expander::new(&Expansion { all: true, ..Expansion::default() });
    let words = all.expand(&Recipe::new("{a|b}", 5), 2).unwrap().words;
    let words: Vec<_> = words.iter().map(|words| (words.prompt.as_str(), words.seed)).collect();
    assert_eq!(words, [("a", 5), ("b", 5), ("a", 6), ("b", 6)]);
    let error = all.expand(&Recipe::new("{a|b}", 5), 501).unwrap_err().to_string();
    assert!(error.contains("1002 images"), "{error}");
}

#[test]
fn an_error_names_the_place_and_near_names() {
    for (template, words) in [
        ("a {red|blue", &["column 3 of the prompt", "not closed"][..]),
        ("{a|b} __colr__", &["column 7 ", "`__colr__`", "did you mean `__color__`?"]),
        ("__place/city__", &["`__place/city-1__`"]),
        ("__xyzzy__", &["no wildcard `__xyzzy__`"]),
        ("__place/../color__", &["no wildcard"]),
        ("__place__", &["no wildcard"]),
        ("{3$$a|b}", &["column 1 of the prompt", "3 options are to be picked, but there are 2"]),
        ("{0::a|0::b}", &["all weights are 0"]),
        ("x ${y}", &["column 3", "variables"]),
    ] {
        let error = refused(template);
        assert!(words.iter().all(|word| error.contains(word)), "{template}: {error}");
    }
    let error = prompt(&Expander::new(&Expansion::default()), "a __color__", 1).unwrap_err();
    assert!(error.contains("no folder of wildcards") && error.contains("wildcards"), "{error}");
    let missing = prompt(&expander("/nonexistent".as_ref()), "a __color__", 1).unwrap_err();
    assert!(missing.contains("cannot open the folder of wildcards"), "{missing}");
}

#[test]
fn files_are_checked() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &[u8]| fs::write(folder.path().join(name), text).unwrap();
    let error = |template: &str| prompt(&expander(folder.path()), template, 1).unwrap_err();
    write("loop.txt", b"x __other__");
    write("other.txt", b"\nx __loop__");
    let told = error("__loop__");
    assert!(told.contains("`__other__`, line 2, column 3") && told.contains("`__loop__` -> `__other__` -> `__loop__`"));
    write("long.txt", &vec![b'a'; (1 << 20) + 1]);
    assert!(error("__long__").contains(" 1 MiB"));
    write("wide.txt", &vec![b'a'; MAX_PROMPT_BYTES + 1]);
    assert!(error("__wide__").contains("line 1: "));
    write("many.txt", "a\n".repeat(10_001).as_bytes());
    assert!(error("__many__").contains("line 10001: "));
    write("latin.txt", b"k\xe4se");
    assert!(error("__latin__").contains("utf-8"));
    write("empty.txt", b"# nothing\n\n");
    assert!(error("__empty__").contains("no entries"));
    write("weight.txt", b"a\n-1::b");
    assert!(error("__weight__").contains("`__weight__`, line 2: "));
    write("open.txt", b"a\n\nb {c|d");
    let told = (0..40).find_map(|seed| prompt(&expander(folder.path()), "__open__", seed).err()).unwrap();
    assert!(told.contains("`__open__`, line 3, column 3: "), "{told}");
    write("bom.txt", "\u{feff}a\r\n".as_bytes());
    assert_eq!(prompt(&expander(folder.path()), "__bom__", 1).unwrap(), "a");
    for number in 0..17 {
        write(&format!("n{number}.txt"), &[b"# ", &vec![b'x'; (1 << 20) - 20][..], b"\na\n"].concat());
    }
    let many: String = (0..17).map(|number| format!("__n{number}__")).collect();
    assert!(error(&many).contains("16 MiB"));
    fs::create_dir(folder.path().join("folder.txt")).unwrap();
    assert!(error("__folder__").contains("cannot read"));
}

#[test]
fn links_do_not_lead_out_of_the_folder() {
    use std::os::unix::fs::symlink;
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("secret.txt"), "secret").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    symlink(outside.path().join("secret.txt"), at("link.txt")).unwrap();
    symlink(outside.path(), at("away")).unwrap();
    fs::write(at("inside.txt"), "inside").unwrap();
    symlink(at("inside.txt"), at("alias.txt")).unwrap();
    let expand = |template: &str| prompt(&expander(folder.path()), template, 1);
    for template in ["__link__", "__away/secret__"] {
        let error = expand(template).unwrap_err();
        assert!(error.contains("outside the folder of wildcards"), "{error}");
    }
    let error = expand("__away/secrets__").unwrap_err();
    assert!(!error.contains("mean"), "{error}");
    assert_eq!(expand("__alias__").unwrap(), "inside");
}

#[test]
fn templates_are_bounded() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
    write("page.txt", &"x".repeat(60_000));
    for depth in 0..20 {
        write(&format!("d{depth}.txt"), &format!("__d{}__", depth + 1));
    }
    write("d20.txt", "end");
    // Each file doubles the next.
    for depth in 0..15 {
        write(&format!("t{depth}.txt"), &format!("__t{0}__ __t{0}__", depth + 1));
    }
    write("t15.txt", "x");
    let expander = expander(folder.path());
    for (template, words) in [
        ("__page__ __page__", "65536 bytes"),
        (&"{a|b}".repeat(1001), "1000 options"),
        ("__d0__", "nested more than 16 deep"),
        ("__t0__", "1000 options"),
    ] {
        let error = prompt(&expander, template, 1).unwrap_err();
        assert!(error.contains(words), "{error}");
    }
    assert_eq!(prompt(&expander, "__d5__", 1).unwrap(), "end");
}

#[test]
fn random_templates_never_panic_and_end_soon() {
    let pieces = [
        "{", "}", "|", "{", "}", "|", "$$", "2$$", "1-3$$", "::", "0.5::", "-1::", "__", "_", "__color__",
        "__animal__", "__place/city-1__", "__none__", "\\", "\\{", "\\|", "${", "\"", "{\"a\": 1}", "{\"", "[{", "}]",
        " ", ", ", "a", "b", "ä", "\u{1f9c0}", "\n", ":", "9999999999", "-", "*",
    ];
    let expander = expander(FOLDER.as_ref());
    let listing = Expander::new(&Expansion { wildcards: Some(FOLDER.into()), all: true, ..Expansion::default() });
    let mut random = RandomStream::new(1, 0);
    let mut below = |end: usize| (random.uniform() * end as f64) as usize;
    let (start, mut expanded) = (Instant::now(), 0);
    for seed in 0..10_000 {
        let length = below(if seed % 100 == 0 { 2000 } else { 30 });
        let template: String = (0..length).map(|_| pieces[below(pieces.len())]).collect();
        if let Ok(prompt) = prompt(&expander, &template, seed) {
            assert!(prompt.len() <= MAX_PROMPT_BYTES);
            assert_eq!(Ok(&prompt), self::prompt(&expander, &template, seed).as_ref());
            expanded += 1;
        }
        if let Ok(all) = listing.combinations(&Recipe::new(&template, 0)) {
            assert!((1..=MAX_COMBINATIONS).contains(&all));
        }
    }
    assert!(expanded > 1000, "{expanded}");
    // Without optimization, on a busy machine.
    assert!(start.elapsed() < Duration::from_secs(120), "{:?}", start.elapsed());
    for hostile in
        ["{\"", "{\"a\":", "{\"a\":[", "__a", "{2$$", "$$", "{a}", "|", "{ ", "\\{", "{a|b}", "_", "[{\"a\": 1,"]
    {
        let (template, start) = (hostile.repeat(MAX_PROMPT_BYTES / hostile.len()), Instant::now());
        let _ = prompt(&expander, &template, 1);
        assert!(start.elapsed() < Duration::from_secs(20), "{hostile}: {:?}", start.elapsed());
    }
}
