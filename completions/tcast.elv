# Completions of tcast for elvish. They come from the program itself, which must be on the PATH.

use str

set edit:completion:arg-completer[tcast] = {|@words|
    env TCAST_COMPLETE=elvish tcast -- $@words 2>/dev/null | from-lines | each {|line|
        var value help = (str:split "\t" $line)
        var suffix = ' '
        if (or (str:has-suffix $value '=') (str:has-suffix $value '/')) {
            set suffix = ''
        }
        var shown = $value
        if (not-eq $help '') {
            set shown = $value' ('$help')'
        }
        edit:complex-candidate $value &display=$shown &code-suffix=$suffix
    }
}
