#compdef tcast

autoload -U is-at-least

_tcast() {
    typeset -A opt_args
    typeset -a _arguments_options
    local ret=1

    if is-at-least 5.2; then
        _arguments_options=(-s -S -C)
    else
        _arguments_options=(-s -C)
    fi

    local context curcontext="$curcontext" state line
    _arguments "${_arguments_options[@]}" : \
'-h[Print help]' \
'--help[Print help]' \
'-V[Print version]' \
'--version[Print version]' \
":: :_tcast_commands" \
"*::: :->tcast" \
&& ret=0
    case $state in
    (tcast)
        words=($line[1] "${words[@]}")
        (( CURRENT += 1 ))
        curcontext="${curcontext%:*:*}:tcast-command-$line[1]:"
        case $line[1] in
            (cast)
_arguments "${_arguments_options[@]}" : \
'--to=[The type to convert to\: float8e4m3fn, bf16, int8, string, ...]:DTYPE:_default' \
'--max-shard-size=[Write a folder of shards with at most so many bytes of tensors each\: 5GB, 500MB, 2GiB]:SIZE:_default' \
'(-f --force)--part=[Do the I-th of N parts, beside others that may run at once, also on other machines]:I/N:_default' \
'(--to --rule --part --resume --max-shard-size -o --output -f --force -n --dry-run --report --hash --stats --fail-on)--finish=[Put the folder together that all parts were written into]:OUT:_files' \
'(-n --dry-run)--report=[Write the report to a file as well, with the figures of --stats\: .html for a page to look at, or .json]:FILE:_files' \
'--saturate=[Clamp what is beyond a float8 type'\''s range; false\: make it infinite or NaN \[default\: true\]]::BOOL:(true false)' \
'--round-mode=[Where float8e8m0 rounds to \[default\: up\]]:MODE:((up\:"the next power of two"
down\:"the power of two below"
nearest\:"the nearest, a tie upwards"))' \
'--out-of-range=[What a float that an integer type cannot hold becomes]:POLICY:((wrap\:"the low bits; NaN and Inf give 0"
saturate\:"the nearest end; NaN gives 0"
error\:"refuse; nothing is written"))' \
'*--fail-on=[Write nothing and exit with 3 if one of these happens to a value; repeatable, or separated by commas]:LIST:((saturated\:"saturated"
infinite\:"became infinite"
nan\:"became NaN"
flushed\:"flushed to zero"
wrapped\:"wrapped"
inexact\:"rounded or otherwise changed"))' \
'--opset=[Cast as that opset'\''s Cast, 1 to 28 \[default\: all types and attributes, by the rules of Cast-23\]]:N:_default' \
'*--include=[Only tensors whose name matches; repeatable, the others are copied]:GLOB:_default' \
'*--exclude=[Not tensors whose name matches; repeatable]:GLOB:_default' \
'*--rule=[Another type for some tensors, integers too, or GLOB=keep; repeatable, the first match wins, before --to]:GLOB=DTYPE:_default' \
'*--rename=[Another name for a tensor in the output; repeatable]:OLD=NEW:_default' \
'-o+[Where to write; the extension chooses the format \[default\: INPUT'\''s name with the type in it\]]:PATH:_files' \
'--output=[Where to write; the extension chooses the format \[default\: INPUT'\''s name with the type in it\]]:PATH:_files' \
'--from=[What the stored bytes mean, where the file cannot say (V1, u1, U8)]:DTYPE:_default' \
'-j+[Threads to use \[default\: the cores there are\]]:N:_default' \
'--threads=[Threads to use \[default\: the cores there are\]]:N:_default' \
'--all[Convert integer and bool tensors to a float type too]' \
'--protect[Leave norms, embeddings, output heads, routers, biases and tensors of fewer than two dimensions as they are, but for those that a --rule names]' \
'--force-codes[Cast the codes of weights that are quantized with scales, without their scales]' \
'(-f --force)--resume[Go on with an interrupted conversion\: shards that are done are kept, if input and options are the same]' \
'--stats[Compare every result with its source\: largest errors and where they are, mean error, SQNR, cosine similarity]' \
'--hash[Put SHA-256 of every tensor'\''s bytes, before and after, into the JSON report]' \
'(--saturate)--no-saturate[The same as --saturate=false]' \
'-f[Replace an existing output]' \
'--force[Replace an existing output]' \
'-n[Show what would become what, and the sizes; write nothing]' \
'--dry-run[Show what would become what, and the sizes; write nothing]' \
'--json[Print the report as JSON on standard output]' \
'--no-sync[Do not flush the output to the disk before it takes its name]' \
'-q[No progress, no summary, no warnings; errors stay]' \
'--quiet[No progress, no summary, no warnings; errors stay]' \
'-h[Print help (see more with '\''--help'\'')]' \
'--help[Print help (see more with '\''--help'\'')]' \
'::input -- What to convert\: a .npy, .npz, .safetensors or ONNX tensor (.pb) file, or a folder of .safetensors shards:_files' \
&& ret=0
;;
(bitcast)
_arguments "${_arguments_options[@]}" : \
'--to=[The type that the bits are to be of]:DTYPE:_default' \
'--tensor=[With --hex and --bits\: the tensor to print, where the file has several]:NAME:_default' \
'--range=[With --hex and --bits\: elements A to B, B left out, in the order of rows; either can be missing]:A..B:_default' \
'*--include=[Only tensors whose name matches; repeatable, the others are copied]:GLOB:_default' \
'*--exclude=[Not tensors whose name matches; repeatable]:GLOB:_default' \
'*--rule=[Another type for some tensors, integers too, or GLOB=keep; repeatable, the first match wins, before --to]:GLOB=DTYPE:_default' \
'*--rename=[Another name for a tensor in the output; repeatable]:OLD=NEW:_default' \
'-o+[Where to write; the extension chooses the format \[default\: INPUT'\''s name with the type in it\]]:PATH:_files' \
'--output=[Where to write; the extension chooses the format \[default\: INPUT'\''s name with the type in it\]]:PATH:_files' \
'--from=[What the stored bytes mean, where the file cannot say (V1, u1, U8)]:DTYPE:_default' \
'-j+[Threads to use \[default\: the cores there are\]]:N:_default' \
'--threads=[Threads to use \[default\: the cores there are\]]:N:_default' \
'(--bits --include --exclude --rule --rename -o --output -f --force -n --dry-run --no-sync)--hex[Print the bits as hexadecimal digits, most significant first]' \
'(--include --exclude --rule --rename -o --output -f --force -n --dry-run --no-sync)--bits[Print sign, exponent and mantissa of each element, and what they stand for]' \
'-f[Replace an existing output]' \
'--force[Replace an existing output]' \
'-n[Show what would become what, and the sizes; write nothing]' \
'--dry-run[Show what would become what, and the sizes; write nothing]' \
'--json[Print the report as JSON on standard output]' \
'--no-sync[Do not flush the output to the disk before it takes its name]' \
'-q[No progress, no summary, no warnings; errors stay]' \
'--quiet[No progress, no summary, no warnings; errors stay]' \
'-h[Print help (see more with '\''--help'\'')]' \
'--help[Print help (see more with '\''--help'\'')]' \
':input -- What to read\: a .npy, .npz, .safetensors or ONNX tensor (.pb) file, or a folder of .safetensors shards:_files' \
&& ret=0
;;
(promote)
_arguments "${_arguments_options[@]}" : \
'--u64-target=[The type for uint64 with a signed integer; it takes --unsafe, and has no effect elsewhere]:DTYPE:_default' \
'*--tensor=[The tensor to convert, where a file has several; repeatable, the others are copied]:NAME:_default' \
'--saturate=[Clamp what is beyond a float8 type'\''s range; false\: make it infinite or NaN \[default\: true\]]::BOOL:(true false)' \
'-o+[Where to write\: a folder, which gets a file of each input'\''s name; of one input, a file]:PATH:_files' \
'--output=[Where to write\: a folder, which gets a file of each input'\''s name; of one input, a file]:PATH:_files' \
'--from=[What the stored bytes mean, where the file cannot say (V1, u1, U8)]:DTYPE:_default' \
'-j+[Threads to use \[default\: the cores there are\]]:N:_default' \
'--threads=[Threads to use \[default\: the cores there are\]]:N:_default' \
'--unsafe[Allow a type that cannot hold all values of an input, or is wider than every input]' \
'--pytorch-scalar[Tensors of rank 0 take the type of the others, as in torch]' \
'-f[Replace existing outputs]' \
'--force[Replace existing outputs]' \
'-n[Print the common type; write nothing]' \
'--dry-run[Print the common type; write nothing]' \
'--json[Print the report as JSON on standard output]' \
'--no-sync[Do not flush the outputs to the disk before they take their names]' \
'-q[No progress, no summary; errors stay]' \
'--quiet[No progress, no summary; errors stay]' \
'-h[Print help (see more with '\''--help'\'')]' \
'--help[Print help (see more with '\''--help'\'')]' \
'*::inputs -- The files whose tensors are to get one type\: .npy, .npz, .safetensors, or ONNX tensors (.pb); or, with --tensor, a folder of .safetensors shards:_files' \
&& ret=0
;;
(inspect)
_arguments "${_arguments_options[@]}" : \
'--from=[What the stored bytes mean, where the file cannot say (V1, u1, U8), for --stats]:DTYPE:_default' \
'*--include=[Only tensors whose name matches; repeatable]:GLOB:_default' \
'*--exclude=[Not tensors whose name matches; repeatable]:GLOB:_default' \
'-j+[Threads to use \[default\: the cores there are\]]:N:_default' \
'--threads=[Threads to use \[default\: the cores there are\]]:N:_default' \
'--stats[Figures of the values, and a histogram of their exponents]' \
'--json[Print JSON]' \
'-q[No progress, no warnings]' \
'--quiet[No progress, no warnings]' \
'-h[Print help (see more with '\''--help'\'')]' \
'--help[Print help (see more with '\''--help'\'')]' \
':input -- The file to list\: .npy, .npz, .safetensors, an ONNX tensor (.pb), or a folder of .safetensors shards:_files' \
&& ret=0
;;
(diff)
_arguments "${_arguments_options[@]}" : \
'(--tolerance --from --include --exclude)--report=[Compare A with a JSON report made earlier with --hash\: every tensor must be what was written then]:FILE:_files' \
'--tolerance=[Values with |A - B| <= T are no difference; absolute, not relative. NaN and Inf must be the same]:T:_default' \
'--from=[What the stored bytes mean, where a file cannot say (V1, u1, U8)]:DTYPE:_default' \
'*--include=[Only tensors whose name matches; repeatable]:GLOB:_default' \
'*--exclude=[Not tensors whose name matches; repeatable]:GLOB:_default' \
'-j+[Threads to use \[default\: the cores there are\]]:N:_default' \
'--threads=[Threads to use \[default\: the cores there are\]]:N:_default' \
'--json[Print JSON]' \
'-q[Print nothing but what --json asks for; the exit code says it]' \
'--quiet[Print nothing but what --json asks for; the exit code says it]' \
'-h[Print help (see more with '\''--help'\'')]' \
'--help[Print help (see more with '\''--help'\'')]' \
':a -- What is compared\: .npy, .npz, .safetensors, an ONNX tensor (.pb), or a folder of .safetensors shards:_files' \
'::b -- What it is compared with:_files' \
&& ret=0
;;
(help)
_arguments "${_arguments_options[@]}" : \
":: :_tcast__subcmd__help_commands" \
"*::: :->help" \
&& ret=0

    case $state in
    (help)
        words=($line[1] "${words[@]}")
        (( CURRENT += 1 ))
        curcontext="${curcontext%:*:*}:tcast-help-command-$line[1]:"
        case $line[1] in
            (cast)
_arguments "${_arguments_options[@]}" : \
&& ret=0
;;
(bitcast)
_arguments "${_arguments_options[@]}" : \
&& ret=0
;;
(promote)
_arguments "${_arguments_options[@]}" : \
&& ret=0
;;
(inspect)
_arguments "${_arguments_options[@]}" : \
&& ret=0
;;
(diff)
_arguments "${_arguments_options[@]}" : \
&& ret=0
;;
(help)
_arguments "${_arguments_options[@]}" : \
&& ret=0
;;
        esac
    ;;
esac
;;
        esac
    ;;
esac
}

(( $+functions[_tcast_commands] )) ||
_tcast_commands() {
    local commands; commands=(
'cast:Convert the values of a file to another type' \
'bitcast:Reinterpret the bits of a file'\''s elements, or print them' \
'promote:Convert tensors to the type that they have in common' \
'inspect:List what is in a file or a folder of shards' \
'diff:Say how two files or folders of shards differ' \
'help:Print this message or the help of the given subcommand(s)' \
    )
    _describe -t commands 'tcast commands' commands "$@"
}
(( $+functions[_tcast__subcmd__bitcast_commands] )) ||
_tcast__subcmd__bitcast_commands() {
    local commands; commands=()
    _describe -t commands 'tcast bitcast commands' commands "$@"
}
(( $+functions[_tcast__subcmd__cast_commands] )) ||
_tcast__subcmd__cast_commands() {
    local commands; commands=()
    _describe -t commands 'tcast cast commands' commands "$@"
}
(( $+functions[_tcast__subcmd__diff_commands] )) ||
_tcast__subcmd__diff_commands() {
    local commands; commands=()
    _describe -t commands 'tcast diff commands' commands "$@"
}
(( $+functions[_tcast__subcmd__help_commands] )) ||
_tcast__subcmd__help_commands() {
    local commands; commands=(
'cast:Convert the values of a file to another type' \
'bitcast:Reinterpret the bits of a file'\''s elements, or print them' \
'promote:Convert tensors to the type that they have in common' \
'inspect:List what is in a file or a folder of shards' \
'diff:Say how two files or folders of shards differ' \
'help:Print this message or the help of the given subcommand(s)' \
    )
    _describe -t commands 'tcast help commands' commands "$@"
}
(( $+functions[_tcast__subcmd__help__subcmd__bitcast_commands] )) ||
_tcast__subcmd__help__subcmd__bitcast_commands() {
    local commands; commands=()
    _describe -t commands 'tcast help bitcast commands' commands "$@"
}
(( $+functions[_tcast__subcmd__help__subcmd__cast_commands] )) ||
_tcast__subcmd__help__subcmd__cast_commands() {
    local commands; commands=()
    _describe -t commands 'tcast help cast commands' commands "$@"
}
(( $+functions[_tcast__subcmd__help__subcmd__diff_commands] )) ||
_tcast__subcmd__help__subcmd__diff_commands() {
    local commands; commands=()
    _describe -t commands 'tcast help diff commands' commands "$@"
}
(( $+functions[_tcast__subcmd__help__subcmd__help_commands] )) ||
_tcast__subcmd__help__subcmd__help_commands() {
    local commands; commands=()
    _describe -t commands 'tcast help help commands' commands "$@"
}
(( $+functions[_tcast__subcmd__help__subcmd__inspect_commands] )) ||
_tcast__subcmd__help__subcmd__inspect_commands() {
    local commands; commands=()
    _describe -t commands 'tcast help inspect commands' commands "$@"
}
(( $+functions[_tcast__subcmd__help__subcmd__promote_commands] )) ||
_tcast__subcmd__help__subcmd__promote_commands() {
    local commands; commands=()
    _describe -t commands 'tcast help promote commands' commands "$@"
}
(( $+functions[_tcast__subcmd__inspect_commands] )) ||
_tcast__subcmd__inspect_commands() {
    local commands; commands=()
    _describe -t commands 'tcast inspect commands' commands "$@"
}
(( $+functions[_tcast__subcmd__promote_commands] )) ||
_tcast__subcmd__promote_commands() {
    local commands; commands=()
    _describe -t commands 'tcast promote commands' commands "$@"
}

if [ "$funcstack[1]" = "_tcast" ]; then
    _tcast "$@"
else
    compdef _tcast tcast
fi
