//! Images that clients send before the requests that name them. Their names are names in this table and nothing else;
//! each client sees its own.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use bytes::Bytes;

/// The longest name, and the longest folder.
const MOST_NAME: usize = 255;
/// What an image costs beside its bytes.
const BESIDE: usize = 1 << 10;
/// The most images of an owner.
const MOST_OF_OWNER: usize = 1000;

/// Where an image is, for its client.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Place {
    pub folder: Folder,
    pub subfolder: String,
    pub name: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Folder {
    Input,
    Temp,
    Output,
    /// Under an id, as Krita sends them.
    Krita,
}

impl Folder {
    pub fn of(name: &str) -> Option<Self> {
        [Self::Input, Self::Temp, Self::Output].into_iter().find(|folder| folder.name() == name)
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Input => "input",
            Self::Temp => "temp",
            Self::Output => "output",
            Self::Krita => "krita",
        }
    }
}

impl Place {
    /// None where a name is none that a file may have.
    pub fn new(folder: Folder, subfolder: &str, name: &str) -> Option<Self> {
        let is_fine = |text: &str| {
            text.len() <= MOST_NAME
                && !text.starts_with('/')
                && !text.chars().any(|c| c.is_control() || c == '\\')
                && text.split('/').all(|part| part != "..")
        };
        let subfolder = subfolder.trim_end_matches('/');
        let fits = is_fine(subfolder) && is_fine(name) && !name.is_empty() && !name.contains('/');
        fits.then(|| Self { folder, subfolder: subfolder.to_string(), name: name.to_string() })
    }

    /// `SUBFOLDER/NAME [FOLDER]`
    pub fn of_annotated(text: &str) -> Option<Self> {
        let annotated = text.strip_suffix(']').and_then(|text| text.rsplit_once(" ["));
        let (path, folder) = match annotated.and_then(|(path, folder)| Some((path, Folder::of(folder)?))) {
            Some((path, folder)) => (path, folder),
            None => (text, Folder::Input),
        };
        let (subfolder, name) = path.rsplit_once('/').unwrap_or(("", path));
        Self::new(folder, subfolder, name)
    }

    /// Of an id of Krita.
    pub fn of_krita(id: &str) -> Option<Self> {
        Self::new(Folder::Krita, "", id)
    }

    /// As nodes name it.
    pub fn path(&self) -> String {
        if self.subfolder.is_empty() { self.name.clone() } else { format!("{}/{}", self.subfolder, self.name) }
    }
}

struct Upload {
    owner: String,
    place: Place,
    bytes: Bytes,
    since: Instant,
}

/// All of them, the oldest first.
#[derive(Default)]
pub struct Uploads(VecDeque<Upload>);

impl Uploads {
    pub fn get(&self, owner: &str, place: &Place) -> Option<Bytes> {
        self.0.iter().find(|upload| upload.owner == owner && upload.place == *place).map(|upload| upload.bytes.clone())
    }

    /// Keeps an image in place of what was there. The oldest ones of whoever has most bytes make room, so that nobody
    /// takes the room of all others. Returns whether there is any.
    pub fn add(&mut self, owner: &str, place: Place, bytes: Bytes, most: usize) -> bool {
        let added = bytes.len() + BESIDE;
        if added > most {
            return false;
        }
        self.0.retain(|upload| upload.owner != owner || upload.place != place);
        if self.0.iter().filter(|upload| upload.owner == owner).count() >= MOST_OF_OWNER {
            self.forget_oldest_of(owner);
        }
        while self.bytes() + added > most {
            let of_most = self.owner_of_most(owner, added);
            self.forget_oldest_of(&of_most);
        }
        self.0.push_back(Upload { owner: owner.to_string(), place, bytes, since: Instant::now() });
        true
    }

    fn forget_oldest_of(&mut self, owner: &str) {
        if let Some(oldest) = self.0.iter().position(|upload| upload.owner == owner) {
            self.0.remove(oldest);
        }
    }

    /// Who has most bytes of those who have any, where one has some more.
    fn owner_of_most(&self, owner: &str, more: usize) -> String {
        let mut of_owner: HashMap<&str, usize> = HashMap::new();
        for upload in &self.0 {
            let before = if upload.owner == owner { more } else { 0 };
            *of_owner.entry(&upload.owner).or_insert(before) += upload.bytes.len() + BESIDE;
        }
        let most = of_owner.into_iter().max_by_key(|(name, bytes)| (*bytes, *name == owner));
        most.map_or(owner, |(name, _)| name).to_string()
    }

    /// The names of an owner's images in a folder.
    pub fn names(&self, owner: &str, folder: Folder) -> Vec<String> {
        let is_listed = |upload: &&Upload| upload.owner == owner && upload.place.folder == folder;
        self.0.iter().filter(is_listed).map(|upload| upload.place.path()).collect()
    }

    pub fn bytes(&self) -> usize {
        self.0.iter().map(|upload| upload.bytes.len() + BESIDE).sum()
    }

    /// Forgets what is too old, and the oldest of what is too much.
    pub fn tidy(&mut self, kept: Duration, most: usize) {
        self.0.retain(|upload| upload.since.elapsed() <= kept);
        let mut bytes = self.bytes();
        while bytes > most
            && let Some(upload) = self.0.pop_front()
        {
            bytes -= upload.bytes.len() + BESIDE;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(name: &str) -> Place {
        Place::new(Folder::Input, "", name).unwrap()
    }

    #[test]
    fn names_are_no_paths() {
        for (subfolder, name) in [
            ("", "../x.png"),
            ("..", "x.png"),
            ("a/../b", "x.png"),
            ("/a", "x.png"),
            ("", ""),
            ("", "a\\b"),
            ("", "a\0b"),
        ] {
            assert_eq!(Place::new(Folder::Input, subfolder, name), None, "{subfolder} {name}");
        }
        assert!(Place::new(Folder::Input, "", &"x".repeat(256)).is_none());
        assert_eq!(Place::of_annotated("a/b.png [temp]"), Place::new(Folder::Temp, "a", "b.png"));
        assert_eq!(Place::of_annotated("b [1].png"), Place::new(Folder::Input, "", "b [1].png"));
        assert_eq!(Place::of_annotated("a/b.png").unwrap().path(), "a/b.png");
        assert_eq!(Place::of_annotated("../b.png [output]"), None);
    }

    #[test]
    fn whoever_has_most_makes_room() {
        let mut uploads = Uploads::default();
        let some = || Bytes::from(vec![0; 1000]);
        let most = 3 * (1000 + BESIDE);
        assert!(uploads.add("a", place("1"), some(), most));
        assert!(uploads.add("b", place("1"), some(), most));
        for name in ["2", "3", "3"] {
            assert!(uploads.add("a", place(name), some(), most));
        }
        assert_eq!(uploads.names("a", Folder::Input), ["2", "3"], "it loses its own");
        assert!(uploads.get("b", &place("1")).is_some() && uploads.get("b", &place("2")).is_none());
        assert!(uploads.add("c", place("1"), some(), most), "nobody has the room of all");
        assert_eq!(uploads.names("a", Folder::Input), ["3"]);
        assert!(uploads.get("b", &place("1")).is_some() && uploads.get("c", &place("1")).is_some());
        assert!(!uploads.add("c", place("1"), Bytes::from(vec![0; 1 << 20]), most), "more than there is");
        uploads.tidy(Duration::ZERO, most);
        assert_eq!(uploads.bytes(), 0);
        (0..=MOST_OF_OWNER).for_each(|name| assert!(uploads.add("a", place(&name.to_string()), some(), 1 << 30)));
        let names = uploads.names("a", Folder::Input);
        assert_eq!((names.len(), names[0].as_str()), (MOST_OF_OWNER, "1"));
    }
}
