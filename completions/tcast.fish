# Print an optspec for argparse to handle cmd's options that are independent of any subcommand.
function __fish_tcast_global_optspecs
    string join \n h/help V/version
end

function __fish_tcast_needs_command
    # Figure out if the current invocation already has a command.
    set -l cmd (commandline -opc)
    set -e cmd[1]
    argparse -s (__fish_tcast_global_optspecs) -- $cmd 2>/dev/null
    or return
    if set -q argv[1]
        # Also print the command, so this can be used to figure out what it is.
        echo $argv[1]
        return 1
    end
    return 0
end

function __fish_tcast_using_subcommand
    set -l cmd (__fish_tcast_needs_command)
    test -z "$cmd"
    and return 1
    contains -- $cmd[1] $argv
end

complete -c tcast -n "__fish_tcast_needs_command" -s h -l help -d 'Print help'
complete -c tcast -n "__fish_tcast_needs_command" -s V -l version -d 'Print version'
complete -c tcast -n "__fish_tcast_needs_command" -f -a "cast" -d 'Convert the values of a file to another type'
complete -c tcast -n "__fish_tcast_needs_command" -f -a "bitcast" -d 'Reinterpret the bits of a file\'s elements, or print them'
complete -c tcast -n "__fish_tcast_needs_command" -f -a "promote" -d 'Convert tensors to the type that they have in common'
complete -c tcast -n "__fish_tcast_needs_command" -f -a "inspect" -d 'List what is in a file or a folder of shards'
complete -c tcast -n "__fish_tcast_needs_command" -f -a "diff" -d 'Say how two files or folders of shards differ'
complete -c tcast -n "__fish_tcast_needs_command" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c tcast -n "__fish_tcast_using_subcommand cast" -l to -d 'The type to convert to: float8e4m3fn, bf16, int8, string, ...' -r
complete -c tcast -n "__fish_tcast_using_subcommand cast" -l max-shard-size -d 'Write a folder of shards with at most so many bytes of tensors each: 5GB, 500MB, 2GiB' -r
complete -c tcast -n "__fish_tcast_using_subcommand cast" -l part -d 'Do the I-th of N parts, beside others that may run at once, also on other machines' -r
complete -c tcast -n "__fish_tcast_using_subcommand cast" -l finish -d 'Put the folder together that all parts were written into' -r -F
complete -c tcast -n "__fish_tcast_using_subcommand cast" -l report -d 'Write the report to a file as well, with the figures of --stats: .html for a page to look at, or .json' -r -F
complete -c tcast -n "__fish_tcast_using_subcommand cast" -l saturate -d 'Clamp what is beyond a float8 type\'s range; false: make it infinite or NaN [default: true]' -r -f -a "true\t''
false\t''"
complete -c tcast -n "__fish_tcast_using_subcommand cast" -l round-mode -d 'Where float8e8m0 rounds to [default: up]' -r -f -a "up\t'the next power of two'
down\t'the power of two below'
nearest\t'the nearest, a tie upwards'"
complete -c tcast -n "__fish_tcast_using_subcommand cast" -l out-of-range -d 'What a float that an integer type cannot hold becomes' -r -f -a "wrap\t'the low bits; NaN and Inf give 0'
saturate\t'the nearest end; NaN gives 0'
error\t'refuse; nothing is written'"
complete -c tcast -n "__fish_tcast_using_subcommand cast" -l fail-on -d 'Write nothing and exit with 3 if one of these happens to a value; repeatable, or separated by commas' -r -f -a "saturated\t'saturated'
infinite\t'became infinite'
nan\t'became NaN'
flushed\t'flushed to zero'
wrapped\t'wrapped'
inexact\t'rounded or otherwise changed'"
complete -c tcast -n "__fish_tcast_using_subcommand cast" -l opset -d 'Cast as that opset\'s Cast, 1 to 28 [default: all types and attributes, by the rules of Cast-23]' -r
complete -c tcast -n "__fish_tcast_using_subcommand cast" -l include -d 'Only tensors whose name matches; repeatable, the others are copied' -r
complete -c tcast -n "__fish_tcast_using_subcommand cast" -l exclude -d 'Not tensors whose name matches; repeatable' -r
complete -c tcast -n "__fish_tcast_using_subcommand cast" -l rule -d 'Another type for some tensors, integers too, or GLOB=keep; repeatable, the first match wins, before --to' -r
complete -c tcast -n "__fish_tcast_using_subcommand cast" -l rename -d 'Another name for a tensor in the output; repeatable' -r
complete -c tcast -n "__fish_tcast_using_subcommand cast" -s o -l output -d 'Where to write; the extension chooses the format [default: INPUT\'s name with the type in it]' -r -F
complete -c tcast -n "__fish_tcast_using_subcommand cast" -l from -d 'What the stored bytes mean, where the file cannot say (V1, u1, U8)' -r
complete -c tcast -n "__fish_tcast_using_subcommand cast" -s j -l threads -d 'Threads to use [default: the cores there are]' -r
complete -c tcast -n "__fish_tcast_using_subcommand cast" -l all -d 'Convert integer and bool tensors to a float type too'
complete -c tcast -n "__fish_tcast_using_subcommand cast" -l protect -d 'Leave norms, embeddings, output heads, routers, biases and tensors of fewer than two dimensions as they are, but for those that a --rule names'
complete -c tcast -n "__fish_tcast_using_subcommand cast" -l force-codes -d 'Cast the codes of weights that are quantized with scales, without their scales'
complete -c tcast -n "__fish_tcast_using_subcommand cast" -l resume -d 'Go on with an interrupted conversion: shards that are done are kept, if input and options are the same'
complete -c tcast -n "__fish_tcast_using_subcommand cast" -l stats -d 'Compare every result with its source: largest errors and where they are, mean error, SQNR, cosine similarity'
complete -c tcast -n "__fish_tcast_using_subcommand cast" -l hash -d 'Put SHA-256 of every tensor\'s bytes, before and after, into the JSON report'
complete -c tcast -n "__fish_tcast_using_subcommand cast" -l no-saturate -d 'The same as --saturate=false'
complete -c tcast -n "__fish_tcast_using_subcommand cast" -s f -l force -d 'Replace an existing output'
complete -c tcast -n "__fish_tcast_using_subcommand cast" -s n -l dry-run -d 'Show what would become what, and the sizes; write nothing'
complete -c tcast -n "__fish_tcast_using_subcommand cast" -l json -d 'Print the report as JSON on standard output'
complete -c tcast -n "__fish_tcast_using_subcommand cast" -l no-sync -d 'Do not flush the output to the disk before it takes its name'
complete -c tcast -n "__fish_tcast_using_subcommand cast" -s q -l quiet -d 'No progress, no summary, no warnings; errors stay'
complete -c tcast -n "__fish_tcast_using_subcommand cast" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c tcast -n "__fish_tcast_using_subcommand bitcast" -l to -d 'The type that the bits are to be of' -r
complete -c tcast -n "__fish_tcast_using_subcommand bitcast" -l tensor -d 'With --hex and --bits: the tensor to print, where the file has several' -r
complete -c tcast -n "__fish_tcast_using_subcommand bitcast" -l range -d 'With --hex and --bits: elements A to B, B left out, in the order of rows; either can be missing' -r
complete -c tcast -n "__fish_tcast_using_subcommand bitcast" -l include -d 'Only tensors whose name matches; repeatable, the others are copied' -r
complete -c tcast -n "__fish_tcast_using_subcommand bitcast" -l exclude -d 'Not tensors whose name matches; repeatable' -r
complete -c tcast -n "__fish_tcast_using_subcommand bitcast" -l rule -d 'Another type for some tensors, integers too, or GLOB=keep; repeatable, the first match wins, before --to' -r
complete -c tcast -n "__fish_tcast_using_subcommand bitcast" -l rename -d 'Another name for a tensor in the output; repeatable' -r
complete -c tcast -n "__fish_tcast_using_subcommand bitcast" -s o -l output -d 'Where to write; the extension chooses the format [default: INPUT\'s name with the type in it]' -r -F
complete -c tcast -n "__fish_tcast_using_subcommand bitcast" -l from -d 'What the stored bytes mean, where the file cannot say (V1, u1, U8)' -r
complete -c tcast -n "__fish_tcast_using_subcommand bitcast" -s j -l threads -d 'Threads to use [default: the cores there are]' -r
complete -c tcast -n "__fish_tcast_using_subcommand bitcast" -l hex -d 'Print the bits as hexadecimal digits, most significant first'
complete -c tcast -n "__fish_tcast_using_subcommand bitcast" -l bits -d 'Print sign, exponent and mantissa of each element, and what they stand for'
complete -c tcast -n "__fish_tcast_using_subcommand bitcast" -s f -l force -d 'Replace an existing output'
complete -c tcast -n "__fish_tcast_using_subcommand bitcast" -s n -l dry-run -d 'Show what would become what, and the sizes; write nothing'
complete -c tcast -n "__fish_tcast_using_subcommand bitcast" -l json -d 'Print the report as JSON on standard output'
complete -c tcast -n "__fish_tcast_using_subcommand bitcast" -l no-sync -d 'Do not flush the output to the disk before it takes its name'
complete -c tcast -n "__fish_tcast_using_subcommand bitcast" -s q -l quiet -d 'No progress, no summary, no warnings; errors stay'
complete -c tcast -n "__fish_tcast_using_subcommand bitcast" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c tcast -n "__fish_tcast_using_subcommand promote" -l u64-target -d 'The type for uint64 with a signed integer; it takes --unsafe, and has no effect elsewhere' -r
complete -c tcast -n "__fish_tcast_using_subcommand promote" -l tensor -d 'The tensor to convert, where a file has several; repeatable, the others are copied' -r
complete -c tcast -n "__fish_tcast_using_subcommand promote" -l saturate -d 'Clamp what is beyond a float8 type\'s range; false: make it infinite or NaN [default: true]' -r -f -a "true\t''
false\t''"
complete -c tcast -n "__fish_tcast_using_subcommand promote" -s o -l output -d 'Where to write: a folder, which gets a file of each input\'s name; of one input, a file' -r -F
complete -c tcast -n "__fish_tcast_using_subcommand promote" -l from -d 'What the stored bytes mean, where the file cannot say (V1, u1, U8)' -r
complete -c tcast -n "__fish_tcast_using_subcommand promote" -s j -l threads -d 'Threads to use [default: the cores there are]' -r
complete -c tcast -n "__fish_tcast_using_subcommand promote" -l unsafe -d 'Allow a type that cannot hold all values of an input, or is wider than every input'
complete -c tcast -n "__fish_tcast_using_subcommand promote" -l pytorch-scalar -d 'Tensors of rank 0 take the type of the others, as in torch'
complete -c tcast -n "__fish_tcast_using_subcommand promote" -s f -l force -d 'Replace existing outputs'
complete -c tcast -n "__fish_tcast_using_subcommand promote" -s n -l dry-run -d 'Print the common type; write nothing'
complete -c tcast -n "__fish_tcast_using_subcommand promote" -l json -d 'Print the report as JSON on standard output'
complete -c tcast -n "__fish_tcast_using_subcommand promote" -l no-sync -d 'Do not flush the outputs to the disk before they take their names'
complete -c tcast -n "__fish_tcast_using_subcommand promote" -s q -l quiet -d 'No progress, no summary; errors stay'
complete -c tcast -n "__fish_tcast_using_subcommand promote" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c tcast -n "__fish_tcast_using_subcommand inspect" -l from -d 'What the stored bytes mean, where the file cannot say (V1, u1, U8), for --stats' -r
complete -c tcast -n "__fish_tcast_using_subcommand inspect" -l include -d 'Only tensors whose name matches; repeatable' -r
complete -c tcast -n "__fish_tcast_using_subcommand inspect" -l exclude -d 'Not tensors whose name matches; repeatable' -r
complete -c tcast -n "__fish_tcast_using_subcommand inspect" -s j -l threads -d 'Threads to use [default: the cores there are]' -r
complete -c tcast -n "__fish_tcast_using_subcommand inspect" -l stats -d 'Figures of the values, and a histogram of their exponents'
complete -c tcast -n "__fish_tcast_using_subcommand inspect" -l json -d 'Print JSON'
complete -c tcast -n "__fish_tcast_using_subcommand inspect" -s q -l quiet -d 'No progress, no warnings'
complete -c tcast -n "__fish_tcast_using_subcommand inspect" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c tcast -n "__fish_tcast_using_subcommand diff" -l report -d 'Compare A with a JSON report made earlier with --hash: every tensor must be what was written then' -r -F
complete -c tcast -n "__fish_tcast_using_subcommand diff" -l tolerance -d 'Values with |A - B| <= T are no difference; absolute, not relative. NaN and Inf must be the same' -r
complete -c tcast -n "__fish_tcast_using_subcommand diff" -l from -d 'What the stored bytes mean, where a file cannot say (V1, u1, U8)' -r
complete -c tcast -n "__fish_tcast_using_subcommand diff" -l include -d 'Only tensors whose name matches; repeatable' -r
complete -c tcast -n "__fish_tcast_using_subcommand diff" -l exclude -d 'Not tensors whose name matches; repeatable' -r
complete -c tcast -n "__fish_tcast_using_subcommand diff" -s j -l threads -d 'Threads to use [default: the cores there are]' -r
complete -c tcast -n "__fish_tcast_using_subcommand diff" -l json -d 'Print JSON'
complete -c tcast -n "__fish_tcast_using_subcommand diff" -s q -l quiet -d 'Print nothing but what --json asks for; the exit code says it'
complete -c tcast -n "__fish_tcast_using_subcommand diff" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c tcast -n "__fish_tcast_using_subcommand help; and not __fish_seen_subcommand_from cast bitcast promote inspect diff help" -f -a "cast" -d 'Convert the values of a file to another type'
complete -c tcast -n "__fish_tcast_using_subcommand help; and not __fish_seen_subcommand_from cast bitcast promote inspect diff help" -f -a "bitcast" -d 'Reinterpret the bits of a file\'s elements, or print them'
complete -c tcast -n "__fish_tcast_using_subcommand help; and not __fish_seen_subcommand_from cast bitcast promote inspect diff help" -f -a "promote" -d 'Convert tensors to the type that they have in common'
complete -c tcast -n "__fish_tcast_using_subcommand help; and not __fish_seen_subcommand_from cast bitcast promote inspect diff help" -f -a "inspect" -d 'List what is in a file or a folder of shards'
complete -c tcast -n "__fish_tcast_using_subcommand help; and not __fish_seen_subcommand_from cast bitcast promote inspect diff help" -f -a "diff" -d 'Say how two files or folders of shards differ'
complete -c tcast -n "__fish_tcast_using_subcommand help; and not __fish_seen_subcommand_from cast bitcast promote inspect diff help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
