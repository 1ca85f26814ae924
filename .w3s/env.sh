export HERE=$PWD
export DSL=/tmp/site-packages:/tmp/site-packages/nvidia_cutlass_dsl/dsl_packages:$PWD
export NODSL=/tmp/nodsl/site-packages:$PWD
export PYTHONDONTWRITEBYTECODE=1
check() { # name bundle program withdsl|without
  local opt=""; local path=$DSL
  [ "$4" = without ] && { opt=--without-dsl; path=$NODSL; }
  PYTHONPATH=$path timeout 500 python -m cutlass_aot run $opt --bundle $2 --policy required --ledger $R/$1.json -- python $3 --check > $R/$1.txt 2>&1; echo "$1 rc $? $(grep -c '^ok' $R/$1.txt) ok $(grep -vc '^ok' $R/$1.txt) other; $(grep 'cutlass-aot:' $R/$1.txt | tail -1)"
}
