# Writes the folder `many`: the model with 12,000 more tensors.
mkdir many
cp model/*.json many
n=$(od -An -tu8 -N8 model/model.safetensors | tr -d ' ')
{
    printf '{'
    seq 12000 | sed 's/.*/"model.layers.&.adapter.lora_A.default.weight":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},/'
    tail -c +10 model/model.safetensors | head -c $((n - 1))
} > header
length=$(wc -c < header)
octal() { printf '\\%03o' $(($1 & 255)) $(($1 >> 8 & 255)) $(($1 >> 16 & 255)) 0 0 0 0 0; }
{
    printf "$(octal $length)"
    cat header
    tail -c +$((9 + n)) model/model.safetensors
} > many/model.safetensors
