//! Images that clients upload before the requests that name them. Their names never refer to files on disk, and each
//! client has a namespace of its own.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use bytes::Bytes;

/// Max bytes of a name and of a subfolder.
const MAX_NAME: usize = 255;
/// The overhead of an image, in bytes.
const BESIDE: usize = 1 << 10;
/// Max images of an owner.
const MAX_PER_OWNER: usize = 1000;

/// The name of an image within its client's namespace.
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
    /// Images under an ID, as sent by Krita.
    Krita,
}

impl Folder {
    pub fn from_name(name: &str) -> Option<Self> {
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
    /// Creates a place, or returns `None` if a name is not a valid file name.
    pub fn new(folder: Folder, subfolder: &str, name: &str) -> Option<Self> {
        let is_fine = |text: &str| {
            text.len() <= MAX_NAME
                && !text.starts_with('/')
                && !text.chars().any(|c| c.is_control() || c == '\\')
                && text.split('/').all(|part| part != "..")
        };
        let subfolder = subfolder.trim_end_matches('/');
        let fits = is_fine(subfolder) && is_fine(name) && !name.is_empty() && !name.contains('/');
        fits.then(|| Self { folder, subfolder: subfolder.to_string(), name: name.to_string() })
    }

    /// Parses `SUBFOLDER/NAME [FOLDER]`.
    pub fn parse_annotated(text: &str) -> Option<Self> {
        let annotated = text.strip_suffix(']').and_then(|text| text.rsplit_once(" ["));
        let (path, folder) = match annotated.and_then(|(path, folder)| Some((path, Folder::from_name(folder)?))) {
            Some((path, folder)) => (path, folder),
            None => (text, Folder::Input),
        };
        let (subfolder, name) = path.rsplit_once('/').unwrap_or(("", path));
        Self::new(folder, subfolder, name)
    }

    /// Creates a place from an ID of Krita.
    pub fn from_krita_id(id: &str) -> Option<Self> {
        Self::new(Folder::Krita, "", id)
    }

    /// Returns the path as nodes write it.
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

/// All uploads, oldest first.
#[derive(Default)]
pub struct Uploads(VecDeque<Upload>);

impl Uploads {
    pub fn get(&self, owner: &str, place: &Place) -> Option<Bytes> {
        self.0.iter().find(|upload| upload.owner == owner && upload.place == *place).map(|upload| upload.bytes.clone())
    }

    /// Stores an image, replacing an older one at this place. The oldest images of the owner with the most bytes make
    /// room, so that no owner crowds out the others. Returns `false` if there is no room.
    pub fn add(&mut self, owner: &str, place: Place, bytes: Bytes, most: usize) -> bool {
        let added = bytes.len() + BESIDE;
        if added > most {
            return false;
        }
        self.0.retain(|upload| upload.owner != owner || upload.place != place);
        if self.0.iter().filter(|upload| upload.owner == owner).count() >= MAX_PER_OWNER {
            self.forget_oldest_of(owner);
        }
        while self.bytes() + added > most {
            let of_most = self.largest_owner(owner, added);
            self.forget_oldest_of(&of_most);
        }
        self.0.push_back(Upload { owner: owner.to_string(), place, bytes, since: Instant::now() });
        true
    }

    /// Returns the place itself, or the first numbered one that no other image has. An identical image keeps its place.
    pub fn unused(&self, owner: &str, place: Place, bytes: &Bytes) -> Place {
        let is_near = |upload: &&Upload| {
            upload.owner == owner && upload.place.folder == place.folder && upload.place.subfolder == place.subfolder
        };
        let taken: HashMap<&str, &Bytes> =
            self.0.iter().filter(is_near).map(|upload| (&*upload.place.name, &upload.bytes)).collect();
        let (stem, ending) =
            place.name.rsplit_once('.').map_or((&*place.name, ""), |(stem, _)| (stem, &place.name[stem.len()..]));
        let numbered = (1..=taken.len()).map(|number| format!("{stem} ({number}){ending}"));
        let is_free = |name: &String| taken.get(&**name).is_none_or(|known| *known == bytes);
        let name = std::iter::once(place.name.clone()).chain(numbered).find(is_free);
        Place { name: name.unwrap_or_else(|| place.name.clone()), ..place }
    }

    fn forget_oldest_of(&mut self, owner: &str) {
        if let Some(oldest) = self.0.iter().position(|upload| upload.owner == owner) {
            self.0.remove(oldest);
        }
    }

    /// Returns the owner with the most bytes, counting `more` bytes for `owner`.
    fn largest_owner(&self, owner: &str, more: usize) -> String {
        let mut of_owner: HashMap<&str, usize> = HashMap::new();
        for upload in &self.0 {
            let before = if upload.owner == owner { more } else { 0 };
            *of_owner.entry(&upload.owner).or_insert(before) += upload.bytes.len() + BESIDE;
        }
        let most = of_owner.into_iter().max_by_key(|(name, bytes)| (*bytes, *name == owner));
        most.map_or(owner, |(name, _)| name).to_string()
    }

    /// Returns the names of an owner's images in a folder.
    pub fn names(&self, owner: &str, folder: Folder) -> Vec<String> {
        let is_listed = |upload: &&Upload| upload.owner == owner && upload.place.folder == folder;
        self.0.iter().filter(is_listed).map(|upload| upload.place.path()).collect()
    }

    pub fn bytes(&self) -> usize {
        self.0.iter().map(|upload| upload.bytes.len() + BESIDE).sum()
    }

    /// Drops images that are too old, and the oldest ones beyond the memory limit.
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
        assert_eq!(Place::parse_annotated("a/b.png [temp]"), Place::new(Folder::Temp, "a", "b.png"));
        assert_eq!(Place::parse_annotated("b [1].png"), Place::new(Folder::Input, "", "b [1].png"));
        assert_eq!(Place::parse_annotated("a/b.png").unwrap().path(), "a/b.png");
        assert_eq!(Place::parse_annotated("../b.png [output]"), None);
    }

    #[test]
    fn an_image_gets_a_name_that_no_other_one_has() {
        let (mut uploads, other) = (Uploads::default(), Bytes::from_static(b"other"));
        let start = Instant::now();
        for number in 0..MAX_PER_OWNER {
            let bytes = Bytes::from(number.to_string());
            let free = uploads.unused("a", place("x.png"), &bytes);
            assert_eq!(free.name, if number == 0 { "x.png".to_string() } else { format!("x ({number}).png") });
            assert!(uploads.add("a", free, bytes, 1 << 30));
        }
        assert!(start.elapsed().as_secs() < 5, "a thousand uploads with one name");
        assert_eq!(uploads.unused("a", place("x.png"), &Bytes::from_static(b"7")).name, "x (7).png");
        assert_eq!(uploads.unused("b", place("x.png"), &other).name, "x.png");
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
        assert_eq!(uploads.names("a", Folder::Input), ["2", "3"], "the oldest image of the same client is dropped");
        assert!(uploads.get("b", &place("1")).is_some() && uploads.get("b", &place("2")).is_none());
        assert!(uploads.add("c", place("1"), some(), most), "no client can occupy all of the room");
        assert_eq!(uploads.names("a", Folder::Input), ["3"]);
        assert!(uploads.get("b", &place("1")).is_some() && uploads.get("c", &place("1")).is_some());
        assert!(!uploads.add("c", place("1"), Bytes::from(vec![0; 1 << 20]), most), "larger than the limit");
        uploads.tidy(Duration::ZERO, most);
        assert_eq!(uploads.bytes(), 0);
        (0..=MAX_PER_OWNER).for_each(|name| assert!(uploads.add("a", place(&name.to_string()), some(), 1 << 30)));
        let names = uploads.names("a", Folder::Input);
        assert_eq!((names.len(), names[0].as_str()), (MAX_PER_OWNER, "1"));
    }
}
