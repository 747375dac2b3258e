//! Enums whose values have names: each value and its name stand in one line.

/// Declares an enum, the list of its values, and their names.
macro_rules! named {
    ($(#[$about:meta])* $type:ident { $($(#[$doc:meta])* $name:ident = $text:literal,)* }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $type { $($(#[$doc])* $name,)* }

        impl $type {
            /// All values, in the order of their numbers.
            pub const ALL: [Self; [$($text),*].len()] = [$(Self::$name),*];

            /// Returns the name in files and reports.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }
        }
    };
}
