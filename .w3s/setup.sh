set -e
cat /tmp/k/cu12.a /tmp/k/cu12.b .w3/cu12.c > /tmp/k/$(cat .w3/name)
pip install -q --no-index --no-deps --no-compile --upgrade --target /tmp/second /tmp/k/*.whl 2>&1 | tail -1
cp -r /tmp/second/* /tmp/site-packages/
mkdir -p /tmp/fi && tar xJf .w3/fi.txz -C /tmp/fi && cp -r /tmp/fi/* /tmp/site-packages/
mkdir -p /tmp/nodsl/site-packages
for f in /tmp/site-packages/*; do case $(basename $f) in nvidia_ml*) ln -sfn $f /tmp/nodsl/site-packages/;; nvidia*|cutlass) ;; *) ln -sfn $f /tmp/nodsl/site-packages/;; esac; done
