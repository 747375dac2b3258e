//! Macros that give names to the values of enums, and to the phases of machines.

/// Declares an enum, the list of its values, and their names: each value and its name are in one line.
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

/// Names the phases of a machine, or of a part of one, whose name then is in front of them.
///
/// If the type of the part is given, it gets a method `phase` with the name of its phase. In the phase that stands last, behind
/// a semicolon, that is the phase of the part within.
macro_rules! phase_names {
    ($phase:ident: $($name:ident)*) => {
        phase_names! { $phase of "": $($name)* }
    };
    ($phase:ident of $part:literal in $of:ident: $($name:ident)* $(; $within:ident)?) => {
        phase_names! { $phase of $part: $($name)* }

        impl $of {
            pub(crate) const fn phase(&self) -> &'static str {
                $(if let $phase::$within(part) = &self.phase {
                    return part.phase();
                })?
                self.phase.name()
            }
        }
    };
    ($phase:ident of $part:literal: $($name:ident)*) => {
        impl $phase {
            pub(crate) const fn name(&self) -> &'static str {
                match self {
                    $(Self::$name { .. } => concat!($part, stringify!($name)),)*
                }
            }
        }
    };
}

/// Declares the phases of a machine, or of a part of one, whose name then is in front of theirs: each phase with those that
/// may follow it. From these lines come the names in traces, the check of every transition in tests, and the page of the
/// documents that lists them (`docs/internals/phases.md`).
///
/// If the type of the part is given, it gets a method `phase` with the name of its phase; that of the phase `within` is the
/// part's within.
macro_rules! phases {
    ($(#[$about:meta])* enum $phase:ident { $($body:tt)* }) => {
        phases! { @ "" $(#[$about])* enum $phase { $($body)* } }
    };
    ($(#[$about:meta])* enum $phase:ident of $part:literal in $of:ident $(within $within:ident)? { $($body:tt)* }) => {
        phases! { @ $part $(#[$about])* enum $phase { $($body)* } }

        impl $of {
            pub(crate) const fn phase(&self) -> &'static str {
                $(if let $phase::$within(part) = &self.phase {
                    return part.phase();
                })?
                self.phase.name()
            }
        }
    };
    (@ $part:literal $(#[$about:meta])* enum $phase:ident { $(
        $(#[$doc:meta])*
        $name:ident $({ $($field:ident: $type:ty),* })? $(($inner:ty))? => $($next:ident)|*,
    )* }) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        $(#[$about])*
        enum $phase {
            $($(#[$doc])* $name $({ $($field: $type),* })? $(($inner))?,)*
        }

        impl $phase {
            const fn name(&self) -> &'static str {
                match self {
                    $(Self::$name { .. } => concat!($part, stringify!($name)),)*
                }
            }

            /// Checks that `next` may follow.
            #[cfg(test)]
            fn follow(&self, next: &Self) {
                const LEGAL: $crate::testing::phases::Table =
                    &[$((concat!($part, stringify!($name)), &[$(concat!($part, stringify!($next))),*])),*];
                $crate::testing::phases::take(module_path!(), LEGAL, self.name(), next.name());
            }
        }
    };
}
