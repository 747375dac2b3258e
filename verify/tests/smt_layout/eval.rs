//! A reader of printed scripts that shares nothing with the printer: it evaluates terms and formulas as SMT-LIB defines them.

use std::collections::BTreeMap;

/// An expression in parentheses, or a word.
#[derive(Clone, Debug)]
pub(crate) enum Tree {
    Word(String),
    List(Vec<Self>),
}

/// The expressions of a text, without comments.
pub(crate) fn read(text: &str) -> Vec<Tree> {
    let without: String =
        text.lines().map(|line| line.split(';').next().unwrap().to_owned() + "\n").collect();
    let spaced = without.replace('(', " ( ").replace(')', " ) ");
    let mut open = vec![Vec::new()];
    for word in spaced.split_whitespace() {
        match word {
            "(" => open.push(Vec::new()),
            ")" => {
                let list = open.pop().unwrap();
                open.last_mut().unwrap().push(Tree::List(list));
            }
            word => open.last_mut().unwrap().push(Tree::Word(word.to_owned())),
        }
    }
    assert_eq!(open.len(), 1, "parentheses");
    open.pop().unwrap()
}

/// The values of variables; that of a product, written `a*b`, follows.
pub(crate) type Values = BTreeMap<String, i128>;

pub(crate) fn number(tree: &Tree, values: &Values) -> i128 {
    match tree {
        Tree::Word(word) => {
            let of = |name: &str| name.parse().ok().or_else(|| values.get(name).copied());
            word.split('*').map(|name| of(name).unwrap_or_else(|| panic!("{name}"))).product()
        }
        Tree::List(list) => {
            let mut numbers = list[1..].iter().map(|part| number(part, values));
            match word(&list[0]) {
                "+" => numbers.sum(),
                "*" => numbers.product(),
                "-" if list.len() == 2 => -numbers.next().unwrap(),
                other => panic!("{other}"),
            }
        }
    }
}

pub(crate) fn holds(tree: &Tree, values: &Values) -> bool {
    let Tree::List(list) = tree else { panic!("{tree:?}") };
    let mut parts = list[1..].iter();
    match word(&list[0]) {
        "and" => parts.all(|part| holds(part, values)),
        "or" => parts.any(|part| holds(part, values)),
        "=>" => !holds(&list[1], values) || holds(&list[2], values),
        "<=" => number(&list[1], values) <= number(&list[2], values),
        other => panic!("{other}"),
    }
}

/// Every expression that a printer with one mistake would print for this one, with the kind of the mistake.
pub(crate) fn mistakes(tree: &Tree) -> Vec<(&'static str, Tree)> {
    let of_word = |word: &str| Tree::Word(word.to_owned());
    let list = match tree {
        Tree::Word(word) => {
            return match (word.parse::<i128>(), word.rsplit_once('*')) {
                (Ok(number), _) => vec![("a number is one more", of_word(&(number + 1).to_string()))],
                (_, Some((factors, _))) => vec![("a product lacks a factor", of_word(factors))],
                _ => vec![("a variable is left out", of_word("0"))],
            };
        }
        Tree::List(list) => list,
    };
    let with_head = |head: &str| Tree::List([&[of_word(head)], &list[1..]].concat());
    let mut all = Vec::new();
    match word(&list[0]) {
        "+" => {
            all.push(("a sum lacks a summand", Tree::List(list[..list.len() - 1].to_vec())));
            all.push(("a sum is a product", with_head("*")));
        }
        "*" => all.push(("a product is a sum", with_head("+"))),
        "-" => all.push(("a sign is left out", list[1].clone())),
        "<=" => {
            let turned = vec![of_word("<="), list[2].clone(), list[1].clone()];
            all.push(("at most is at least", Tree::List(turned)));
        }
        "or" => all.push(("one of them is all of them", with_head("and"))),
        "=>" => all.push(("a premise is left out", list[2].clone())),
        _ => {}
    }
    for n in 1..list.len() {
        all.extend(mistakes(&list[n]).into_iter().map(|(kind, part)| {
            let mut list = list.clone();
            list[n] = part;
            (kind, Tree::List(list))
        }));
    }
    all
}

/// Every assertion of a script.
pub(crate) fn assertions(script: &[Tree]) -> impl Iterator<Item = &Tree> {
    script.iter().filter_map(|tree| match tree {
        Tree::List(list) if word(&list[0]) == "assert" => Some(&list[1]),
        _ => None,
    })
}

/// The numbers of a model, as `get-value` prints them.
pub(crate) fn model(text: &str) -> Values {
    let mut values = Values::new();
    for tree in read(text) {
        let Tree::List(pairs) = tree else { panic!("{text}") };
        for pair in pairs {
            if let Tree::List(pair) = pair {
                values.insert(word(&pair[0]).to_owned(), number(&pair[1], &Values::new()));
            }
        }
    }
    values
}

fn word(tree: &Tree) -> &str {
    match tree {
        Tree::Word(word) => word,
        Tree::List(_) => panic!("{tree:?}"),
    }
}
